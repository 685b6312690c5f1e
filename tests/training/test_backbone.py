import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from goen.data import ImageSet
from goen.errors import ArtifactError, FitError, UsageError
from goen.extraction import extract
from goen.models import CLASSIFIERS, Classifier, ClassifierKind, NetworkConfig, ResNet18
from goen.models.classifiers import MCDropout
from goen.training import EpochRow, TrainingConfig, train_backbone
from goen.training.backbone import learning_rate

NETWORK = NetworkConfig(num_classes=3, width=1)
CONFIG = TrainingConfig(epochs=4, batch_size=16, learning_rate=0.05, padding=1)


@pytest.fixture
def images() -> ImageSet:
    """Sixty-four 16×16 images whose colour is their class."""
    rng = np.random.default_rng(0)
    labels = np.arange(64) % 3
    pixels = rng.integers(0, 60, (64, 3, 16, 16), dtype=np.uint8)
    pixels[np.arange(64), labels] += 150
    return ImageSet("colours", pixels, labels, ("r", "g", "b"))


def weights(network: ResNet18) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in network.state_dict().items()}


def same(a: ResNet18, b: ResNet18) -> bool:
    return all(
        torch.equal(x, y)
        for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


def test_it_learns(images: ImageSet) -> None:
    config = dataclasses.replace(CONFIG, epochs=15)
    _, rows = train_backbone(NETWORK, config, images, images)
    assert rows[-1].validation_accuracy == 1.0
    assert rows[-1].loss < rows[0].loss
    assert [row.epoch for row in rows] == list(range(15))


def test_each_row_has_the_shape_of_the_validation_features(images: ImageSet) -> None:
    network, rows = train_backbone(NETWORK, CONFIG, images, images)
    z = extract(network, images).features["z"].double()
    means = torch.stack([z[images.labels == c].mean(0) for c in range(3)])
    within = (z - means[images.labels]).square().sum(1).mean().sqrt()
    between = torch.pdist(means).square().mean().sqrt()
    assert rows[-1].inter_intra_ratio == pytest.approx((between / within).item(), rel=1e-9)
    spectrum = torch.linalg.eigvalsh(torch.cov(z.T, correction=0))
    assert rows[-1].total_top_share == pytest.approx((spectrum[-1] / spectrum.sum()).item())
    # With one class there is no distance between classes.
    alone = ImageSet("one", images.pixels, np.zeros(64, dtype=np.int64), ("r", "g", "b"))
    _, rows = train_backbone(NETWORK, dataclasses.replace(CONFIG, epochs=1), alone, alone)
    assert rows[0].inter_intra_ratio is None


def test_a_training_that_diverges_is_said(images: ImageSet) -> None:
    with pytest.raises(FitError, match="diverged: the loss of epoch 1 is not a number"):
        train_backbone(NETWORK, dataclasses.replace(CONFIG, learning_rate=1e30), images, images)


def test_one_step_equals_plain_torch(images: ImageSet) -> None:
    batch = images.take(range(16))
    config = TrainingConfig(epochs=1, batch_size=16, padding=0, flip="never", label_smoothing=0.2)
    trained, _ = train_backbone(NETWORK, config, batch, batch)
    torch.manual_seed(config.seed)
    plain = ResNet18(NETWORK).train()
    sgd = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(42 * 1_000_003))
    shown, labels = (
        torch.from_numpy(batch.read(order.numpy())),
        torch.from_numpy(batch.labels)[order],
    )
    log_p = plain(shown).logits.log_softmax(1)
    right = -log_p.gather(1, labels[:, None]).mean()
    (0.8 * right - 0.2 * log_p.mean()).backward()  # smoothing written out by hand
    sgd.step()
    for (name, ours), theirs in zip(trained.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6), name


class KilledError(Exception):
    pass


def check_resume(
    network: NetworkConfig, config: TrainingConfig, images: ImageSet, path: Path, stop_after: int
) -> None:
    """Stopped after so many epochs and gone on with, a training ends with the same bytes."""
    whole, rows = train_backbone(network, config, images, images)

    def stop(row: EpochRow) -> None:
        if row.epoch + 1 == stop_after:
            raise KilledError

    with pytest.raises(KilledError):
        train_backbone(network, config, images, images, checkpoint=path, on_epoch=stop)
    seen: list[int] = []
    resumed, again = train_backbone(
        network,
        config,
        images,
        images,
        checkpoint=path,
        on_epoch=lambda row: seen.append(row.epoch),
    )
    assert seen == list(range(stop_after, config.epochs))
    assert same(whole, resumed)
    for a, b in zip(rows, again, strict=True):
        assert dataclasses.replace(a, seconds=0) == dataclasses.replace(b, seconds=0)


@pytest.mark.parametrize("stop_after", [1, 3])
@pytest.mark.parametrize("center_loss", [0.0, 0.01])
def test_a_resumed_training_ends_with_the_same_bytes(
    images: ImageSet, tmp_path: Path, stop_after: int, center_loss: float
) -> None:
    config = dataclasses.replace(CONFIG, center_loss=center_loss, patience=3)
    check_resume(NETWORK, config, images, tmp_path / "checkpoint", stop_after)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_every_classifier_resumes_with_the_same_bytes(
    images: ImageSet, tmp_path: Path, kind: ClassifierKind
) -> None:
    network = dataclasses.replace(NETWORK, classifier=kind)
    config = dataclasses.replace(CONFIG, epochs=2, batch_size=32, center_loss=0.01)
    check_resume(network, config, images, tmp_path / "checkpoint", 1)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_every_classifier_learns(images: ImageSet, kind: ClassifierKind) -> None:
    network = NetworkConfig(num_classes=3, width=4, representation="plain", classifier=kind)
    config = dataclasses.replace(CONFIG, epochs=9, label_smoothing=0.0)
    _, rows = train_backbone(network, config, images, images)
    assert rows[-1].validation_accuracy > 0.9
    assert rows[-1].accuracy > 0.7


def test_every_epoch_has_a_randomness_of_its_own(images: ImageSet) -> None:
    # The same images in the same order: what still differs is the dropout.
    drawn: dict[int, list[bytes]] = {0: [], 1: []}
    network = dataclasses.replace(NETWORK, classifier="dropout")
    config = dataclasses.replace(CONFIG, epochs=2, batch_size=32)
    for seed in (42, 43):
        forward = MCDropout.samples

        def watched(self: MCDropout, hidden: torch.Tensor, seed: int = seed) -> torch.Tensor:
            if self.training:
                drawn[seed - 42].append(torch.get_rng_state().numpy().tobytes())
            return forward(self, hidden)  # noqa: B023

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MCDropout, "samples", watched)
            train_backbone(network, dataclasses.replace(config, seed=seed), images, images)
    assert len(set(drawn[0] + drawn[1])) == 8


@pytest.mark.parametrize("kind", ["evidential", "epinet"])
def test_the_classifier_hears_how_far_the_training_is(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch, kind: ClassifierKind
) -> None:
    told: list[float] = []
    loss = CLASSIFIERS[kind].loss

    def watched(self: Classifier, *args: torch.Tensor, progress: float, **kwargs: float):  # type: ignore[no-untyped-def]
        told.append(progress)
        assert kwargs == {"label_smoothing": 0.1}
        return loss(self, *args, progress=progress, **kwargs)

    monkeypatch.setattr(CLASSIFIERS[kind], "loss", watched)
    network = dataclasses.replace(NETWORK, classifier=kind)
    config = dataclasses.replace(CONFIG, epochs=2, batch_size=16)
    train_backbone(network, config, images, images)
    assert told == [0, 1 / 8, 2 / 8, 3 / 8, 4 / 8, 5 / 8, 6 / 8, 7 / 8]


def test_what_is_frozen_stays_and_carries_no_momentum(images: ImageSet, tmp_path: Path) -> None:
    network = dataclasses.replace(NETWORK, classifier="epinet")
    config = dataclasses.replace(CONFIG, epochs=2, weight_decay=0.1)
    path = tmp_path / "checkpoint"
    trained, _ = train_backbone(network, config, images, images, checkpoint=path)
    torch.manual_seed(config.seed)
    fresh = ResNet18(network).classifier.state_dict()
    kept = {
        name
        for name, tensor in trained.classifier.state_dict().items()
        if torch.equal(tensor, fresh[name])
    }
    assert kept == {name for name in fresh if name.startswith("prior") or name == "indices"}
    saved = set(load_file(path))
    assert {name for name in saved if "prior" in name} == {
        f"network.classifier.{name}" for name in fresh if name.startswith("prior")
    } | {f"best.classifier.{name}" for name in fresh if name.startswith("prior")}
    assert "momentum.classifier.epinet.first.weight" in saved


def test_seeds_matter_and_repeat(images: ImageSet) -> None:
    config = dataclasses.replace(CONFIG, epochs=1)
    a, _ = train_backbone(NETWORK, config, images, images)
    b, _ = train_backbone(NETWORK, config, images, images)
    c, _ = train_backbone(NETWORK, dataclasses.replace(config, seed=1), images, images)
    assert same(a, b)
    assert not same(a, c)


def test_the_callers_randomness_is_left_alone(images: ImageSet) -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    for kind in ("linear", "dropout"):
        torch.manual_seed(0)
        network = dataclasses.replace(NETWORK, classifier=kind)
        train_backbone(network, dataclasses.replace(CONFIG, epochs=1), images, images)
        assert torch.equal(torch.rand(1), expected)


def test_the_callers_randomness_does_not_matter(images: ImageSet) -> None:
    config = dataclasses.replace(CONFIG, epochs=1)
    for kind in ("dropout", "epinet"):
        network = dataclasses.replace(NETWORK, classifier=kind)
        torch.manual_seed(0)
        a, _ = train_backbone(network, config, images, images)
        torch.manual_seed(1)
        b, _ = train_backbone(network, config, images, images)
        assert same(a, b)


def test_patience_stops_and_keeps_the_best(images: ImageSet) -> None:
    # Validation labels that no training can please: the loss only grows once it learns.
    wrong = ImageSet("wrong", images.pixels, (images.labels + 1) % 3, images.classes)
    config = dataclasses.replace(CONFIG, epochs=30, patience=2, padding=0, flip="never")
    network, rows = train_backbone(NETWORK, config, images, wrong)
    losses = [row.validation_loss for row in rows]
    best = losses.index(min(losses))
    assert len(rows) == best + 3 < 30
    network.eval()
    with torch.no_grad():
        logits = network(torch.from_numpy(wrong.read())).logits
    loss = cross_entropy(logits, torch.from_numpy(wrong.labels)).item()
    assert math.isclose(loss, losses[best], rel_tol=1e-5)


def test_center_loss_pulls_features_to_their_centres(images: ImageSet) -> None:
    def spread(weight: float) -> float:
        config = dataclasses.replace(CONFIG, epochs=10, center_loss=weight)
        network, _ = train_backbone(NETWORK, config, images, images)
        with torch.no_grad():
            z = network(torch.from_numpy(images.read())).features["z"]
        labels = torch.from_numpy(images.labels)
        return sum(
            (z[labels == c] - z[labels == c].mean(0)).square().sum().item() for c in range(3)
        )

    assert spread(0.3) < 0.7 * spread(0.0)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("cosine", {0: 0.1, 0.5: 0.05, 1: 0.0}),
        ("one_cycle", {0: 0.01, 0.1: 0.055, 0.2: 0.1, 0.6: 0.05, 1: 0.0}),
    ],
)
def test_schedules(schedule: str, values: dict[float, float]) -> None:
    config = TrainingConfig(schedule=schedule)
    for progress, expected in values.items():
        assert math.isclose(learning_rate(config, progress), expected, abs_tol=1e-12)


def test_smaller_images_come_first(images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    sides: list[int] = []
    encode = ResNet18.encode

    def watched(self: ResNet18, batch: torch.Tensor):  # type: ignore[no-untyped-def]
        if self.training:
            sides.append(batch.shape[3])
            assert batch.dtype == torch.uint8 or 0 <= batch.min() <= batch.max() <= 1
        return encode(self, batch)

    monkeypatch.setattr(ResNet18, "encode", watched)
    config = dataclasses.replace(CONFIG, batch_size=64, sizes=((2, 8), (1, 12)))
    train_backbone(NETWORK, config, images, images)
    assert sides == [8, 8, 12, 16]


def test_alternating_flips_show_each_image_both_ways(images: ImageSet) -> None:
    from goen.training.backbone import _epoch

    config = dataclasses.replace(CONFIG, flip="alternating", padding=0, batch_size=64)
    shown = []
    for epoch in range(2):
        ((batch, labels, _),) = _epoch(images, config, epoch)
        by_content = {image.flatten().sort().values.numpy().tobytes(): image for image in batch}
        shown.append(by_content)
        assert len(labels) == 64
    for key, image in shown[0].items():
        assert torch.equal(image.flip(2), shown[1][key])


def test_fewer_images_than_a_batch_still_train(images: ImageSet) -> None:
    config = dataclasses.replace(CONFIG, batch_size=1000, epochs=1)
    _, rows = train_backbone(NETWORK, config, images, images)
    assert math.isfinite(rows[0].loss)


def test_a_checkpoint_of_another_network_is_refused(images: ImageSet, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    train_backbone(NETWORK, CONFIG, images, images, checkpoint=path)
    other = NetworkConfig(num_classes=3, width=2)
    with pytest.raises(ArtifactError, match="cannot be continued"):
        train_backbone(other, CONFIG, images, images, checkpoint=path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ArtifactError, match="Delete it to start"):
        train_backbone(NETWORK, CONFIG, images, images, checkpoint=path)


def test_what_cannot_be_trained_is_said(images: ImageSet) -> None:
    with pytest.raises(UsageError, match="4 classes, the images have 3"):
        train_backbone(NetworkConfig(num_classes=4, width=1), CONFIG, images, images)
    with pytest.raises(UsageError, match="at least one epoch"):
        TrainingConfig(epochs=0)


@pytest.mark.parametrize("change", [{"seed": 7}, {"learning_rate": 0.07}, {"epochs": 3}])
def test_a_checkpoint_of_another_training_is_refused(
    images: ImageSet, tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "checkpoint"
    train_backbone(NETWORK, CONFIG, images, images, checkpoint=path)
    with pytest.raises(ArtifactError, match="a training with other settings or images"):
        train_backbone(
            NETWORK, dataclasses.replace(CONFIG, **change), images, images, checkpoint=path
        )
    part = images.take(range(len(images) - 1))
    with pytest.raises(ArtifactError, match="a training with other settings or images"):
        train_backbone(NETWORK, CONFIG, part, images, checkpoint=path)
