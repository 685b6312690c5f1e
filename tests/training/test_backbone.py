import dataclasses
import logging
import math
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from goen.data import ImageSet, protocol
from goen.data.transforms.augment import random_crop_flip
from goen.errors import FitError, GoenWarning, UsageError
from goen.extraction import extract
from goen.models import (
    CLASSIFIERS,
    Architecture,
    Classifier,
    ClassifierKind,
    NetworkConfig,
    ResNet18,
    new_network,
)
from goen.models.classifiers import LinearClassifier, MCDropout
from goen.training import TrainingConfig, backbone, train_backbone
from goen.training.backbone import _begin, _look_ahead, _parameter_groups
from goen.training.batches import TrainingBatch, batches, relative_cost
from goen.training.checkpoint import Checkpoint
from goen.training.config import learning_rate
from goen.training.losses import TrainingLoss
from tests.training.colours import CONFIG, FAST, NETWORK, same


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


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_one_step_equals_plain_torch(images: ImageSet, momentum: float) -> None:
    batch = images.take(range(16))
    config = TrainingConfig(
        epochs=1, batch_size=16, padding=0, flip="never", label_smoothing=0.2, momentum=momentum
    )
    trained, rows = train_backbone(NETWORK, config, batch, batch)
    torch.manual_seed(config.seed)
    plain = ResNet18(NETWORK).train()
    sgd = torch.optim.SGD(
        plain.parameters(), 0.1, momentum, weight_decay=5e-4, nesterov=momentum > 0
    )
    order = torch.randperm(16, generator=torch.Generator().manual_seed(42 * 1_000_003))
    shown, labels = (
        torch.from_numpy(batch.read(order.numpy())),
        torch.from_numpy(batch.labels)[order],
    )
    log_p = plain(shown).logits.log_softmax(1)
    right = -log_p.gather(1, labels[:, None]).mean()
    loss = 0.8 * right - 0.2 * log_p.mean()  # smoothing written out by hand
    loss.backward()
    sgd.step()
    assert rows[0].loss == pytest.approx(loss.item(), rel=1e-5)
    assert rows[0].accuracy == (log_p.argmax(1) == labels).double().mean()
    for (name, ours), theirs in zip(trained.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6), name


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
    config = dataclasses.replace(CONFIG, flip="alternating", padding=0, batch_size=64)
    shown = []
    for epoch in range(2):
        ((batch, labels, _, _),) = batches(images, config, epoch)
        by_content = {image.flatten().sort().values.numpy().tobytes(): image for image in batch}
        shown.append(by_content)
        assert len(labels) == 64
    for key, image in shown[0].items():
        assert torch.equal(image.flip(2), shown[1][key])


def test_fewer_images_than_a_batch_still_train(images: ImageSet) -> None:
    config = dataclasses.replace(CONFIG, batch_size=1000, epochs=1)
    _, rows = train_backbone(NETWORK, config, images, images)
    assert math.isfinite(rows[0].loss)


@pytest.mark.parametrize(("size", "count"), [(10, 3), (11, 2), (15, 2), (16, 1), (30, 1)])
def test_a_last_short_batch_is_left_out(images: ImageSet, size: int, count: int) -> None:
    config = dataclasses.replace(CONFIG, batch_size=size)
    found = [len(batch.labels) for batch in batches(images.take(range(30)), config, 0)]
    assert found == [size] * count
    # One image short of another batch.
    (last,) = batches(images.take(range(2 * size - 1)), config, 0)
    assert len(last[1]) == size


def test_two_images_are_enough(images: ImageSet) -> None:
    config = dataclasses.replace(CONFIG, epochs=1)
    _, history = train_backbone(NETWORK, config, images.take([0, 1], "two"), images)
    assert len(history) == 1


def test_what_cannot_be_trained_is_said(images: ImageSet) -> None:
    with pytest.raises(UsageError, match="4 classes, the images have 3"):
        train_backbone(NetworkConfig(num_classes=4, width=1), CONFIG, images, images)
    with pytest.raises(UsageError, match="one has 1 images; training needs at least two"):
        train_backbone(NETWORK, CONFIG, images.take([0], "one"), images)
    with pytest.raises(UsageError, match=r"none has no images, .* Give at least one\."):
        train_backbone(NETWORK, CONFIG, images, images.take([], "none"))
    turned = dataclasses.replace(images, classes=images.classes[::-1])
    with pytest.raises(UsageError, match="Both need the same classes in the same order"):
        train_backbone(NETWORK, CONFIG, images, turned)


# -- settings of short trainings ---------------------------------------------------------------


def test_the_triangle() -> None:
    config = TrainingConfig(schedule="triangle", learning_rate=2.0)
    assert learning_rate(config, 0) == pytest.approx(0.4)
    assert learning_rate(config, 0.115) == pytest.approx(1.2)
    assert learning_rate(config, 0.23) == pytest.approx(2.0)
    assert learning_rate(config, 0.615) == pytest.approx(2.0 * (0.07 + 0.93 / 2))
    assert learning_rate(config, 1) == pytest.approx(0.14)


def test_a_fast_network_learns(images: ImageSet) -> None:
    network = NetworkConfig(num_classes=3, width=4, architecture="fast_cnn", representation="plain")
    config = dataclasses.replace(FAST, epochs=30)
    _, rows = train_backbone(network, config, images, images)
    assert rows[-1].validation_accuracy == 1.0


def test_biases_of_batch_norms_learn_faster_and_shrink_as_fast(images: ImageSet) -> None:
    batch = images.take(range(16))
    config = TrainingConfig(epochs=1, batch_size=16, padding=0, flip="never", weight_decay=0.1)
    torch.manual_seed(config.seed)
    before = dict(ResNet18(NETWORK).named_parameters())
    moved = {}
    for multiple in (1.0, 8.0):
        trained, _ = train_backbone(
            NETWORK, dataclasses.replace(config, norm_bias_rate=multiple), batch, batch
        )
        moved[multiple] = {
            name: (values - before[name]).detach() for name, values in trained.named_parameters()
        }
    for name, step in moved[1.0].items():
        # Biases of batch norms start at zero, so the first step has no decay of theirs in it.
        is_bias = name.endswith("bias") and ("bn" in name or "shortcut" in name)
        factor = 8.0 if is_bias else 1.0
        assert torch.allclose(moved[8.0][name], factor * step, atol=1e-6), name


def test_the_decay_of_a_faster_bias_is_divided(images: ImageSet) -> None:
    config = TrainingConfig(weight_decay=0.4, norm_bias_rate=8.0)
    loss = TrainingLoss(new_network(NETWORK), config, torch.device("cpu"))
    others, biases = _parameter_groups(loss)
    assert (others["multiple"], others.get("weight_decay")) == (1.0, None)
    assert (biases["multiple"], biases["weight_decay"]) == (8.0, 0.05)
    assert all(p.ndim == 1 for p in biases["params"])  # type: ignore[attr-defined]
    assert len(biases["params"]) == 20  # type: ignore[arg-type]


def test_look_ahead_by_hand(images: ImageSet) -> None:
    torch.manual_seed(0)
    state = _begin(NETWORK, FAST, images, torch.device("cpu"))
    first = {k: v.clone() for k, v in state.network.state_dict().items()}
    _look_ahead(state, 0.1)
    assert all(torch.equal(v, first[k]) for k, v in state.network.state_dict().items())
    with torch.no_grad():
        state.network.bn1.weight += 1.0  # type: ignore[union-attr,operator]
        state.network.bn1.running_mean += 2.0  # type: ignore[union-attr,operator]
    _look_ahead(state, 0.5)
    # The average keeps 0.95^3 * 0.5^3 of itself, and the network becomes the average.
    kept = 0.95**3 * 0.125
    now = state.network.state_dict()
    assert torch.allclose(now["bn1.weight"], first["bn1.weight"] + (1 - kept))
    assert torch.allclose(now["bn1.running_mean"], first["bn1.running_mean"] + 2 * (1 - kept))
    assert state.average is not None
    assert torch.equal(state.average["bn1.weight"], now["bn1.weight"])


def test_after_look_ahead_the_network_is_the_average(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    averages: list[dict[str, torch.Tensor]] = []

    def watched(state: Checkpoint, progress: float) -> None:
        _look_ahead(state, progress)
        assert state.average is not None
        averages.append({name: values.clone() for name, values in state.average.items()})

    monkeypatch.setattr("goen.training.backbone._look_ahead", watched)
    # Four steps, the average after three: the fourth is not in it.
    network, _ = train_backbone(NETWORK, dataclasses.replace(FAST, epochs=1), images, images)
    assert len(averages) == 1
    for name, values in averages[0].items():
        assert torch.equal(network.state_dict()[name], values), name


def test_early_parameters_are_trained_in_the_first_epochs_only(images: ImageSet) -> None:
    network = NetworkConfig(num_classes=3, width=2, architecture="fast_cnn")

    def bias(epochs: int, early: int) -> torch.Tensor:
        config = dataclasses.replace(
            CONFIG, epochs=epochs, early_epochs=early, schedule="cosine", learning_rate=0.01
        )
        trained, _ = train_backbone(network, config, images, images)
        return trained.get_parameter("whitening.bias").detach()

    assert not bias(2, early=0).any()
    assert bias(2, early=1).any()
    assert not torch.equal(bias(2, early=1), bias(2, early=2))


def test_cutout_reaches_the_network(images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def watched(images: torch.Tensor, generator: torch.Generator, side: int) -> torch.Tensor:
        asked.append(side)
        return images

    monkeypatch.setattr("goen.training.batches.cut_out", watched)
    train_backbone(NETWORK, dataclasses.replace(CONFIG, epochs=1, cutout=5), images, images)
    assert asked == [5] * 4


def test_mixtures_reach_the_network(images: ImageSet) -> None:
    config = dataclasses.replace(CONFIG, padding=0, flip="never", batch_size=len(images))
    (plain,) = batches(images, config, 0)
    (half,) = batches(images, dataclasses.replace(config, pixmix=0.5), 0)
    assert torch.equal(half.labels, plain.labels)
    same_image = (half.images == plain.images).flatten(1).all(1)
    assert 0.3 < same_image.float().mean() < 0.7


def test_rotated_copies_come_after_the_images(images: ImageSet) -> None:
    config = dataclasses.replace(CONFIG, batch_size=32, rotation_loss=0.5)
    for batch in batches(images, config, 0):
        assert len(batch.images) == len(batch.turns) == 40
        assert len(batch.labels) == 32
        assert not batch.turns[:32].any()
        assert set(batch.turns[32:].tolist()) <= {1, 2, 3}
        for image, copy, turn in zip(
            batch.images, batch.images[32:], batch.turns[32:], strict=False
        ):
            assert np.array_equal(copy.numpy(), np.rot90(image.numpy(), int(turn), (1, 2)))


def begun_in_plain_torch(
    config: TrainingConfig, images: ImageSet
) -> tuple[ResNet18, TrainingBatch]:
    """The network before its first step, and the only batch of the first epoch."""
    torch.manual_seed(config.seed)
    plain = ResNet18(NETWORK).train()
    (batch,) = batches(images, config, 0)
    return plain, batch


def test_a_step_with_rotations_equals_plain_torch(images: ImageSet) -> None:
    few = images.take(range(16))
    config = TrainingConfig(
        epochs=1, batch_size=16, padding=0, flip="never", rotation_loss=0.5, label_smoothing=0.0
    )
    rotations = dataclasses.replace(NETWORK, rotations=True)
    trained, _ = train_backbone(rotations, config, few, few)
    plain, batch = begun_in_plain_torch(config, few)
    head = torch.nn.Linear(plain.z_width, 4)  # drawn after the network
    sgd = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    hidden, _ = plain.encode(batch.images)
    log_p = plain.classifier(hidden[:16]).log_softmax(1)
    right_turn = head(hidden).log_softmax(1).gather(1, batch.turns[:, None])[:, 0]
    loss = -log_p.gather(1, batch.labels[:, None]).mean()
    (loss - 0.5 * (right_turn[:16].mean() + right_turn[16:].mean()) / 2).backward()
    sgd.step()
    ours = {n: p for n, p in trained.named_parameters() if not n.startswith("rotation.")}
    for (name, own), theirs in zip(ours.items(), plain.parameters(), strict=True):
        assert torch.allclose(own, theirs, atol=1e-6), name


# The fast CNN of this width needs more epochs for the last two.
OPTIONS: list[tuple[Architecture, dict[str, float]]] = [
    ("fast_cnn", {"logit_norm": 0.1}),
    ("fast_cnn", {"feature_norm": True}),
    ("fast_cnn", {"rotation_loss": 0.5}),
    ("fast_cnn", {"pixmix": 0.5}),
    ("resnet18", {"rotation_loss": 1.0, "rotated": 3.0}),
    ("resnet18", {"outlier_loss": 0.5}),
]


@pytest.mark.parametrize(("architecture", "option"), OPTIONS, ids=str)
def test_it_learns_with_every_option(
    images: ImageSet, architecture: Architecture, option: dict[str, float]
) -> None:
    network = NetworkConfig(
        num_classes=3,
        width=4,
        architecture=architecture,
        representation="plain",
        rotations="rotation_loss" in option,
        temperature=0.1 if "feature_norm" in option else 1.0,
    )
    config = dataclasses.replace(FAST, epochs=30, **option)  # type: ignore[arg-type]
    outliers = noise(images) if "outlier_loss" in option else None
    _, rows = train_backbone(network, config, images, images, outliers=outliers)
    assert rows[-1].validation_accuracy == 1.0


def noise(images: ImageSet) -> ImageSet:
    """As many images of noise."""
    pixels = np.random.default_rng(0).integers(0, 256, images.read().shape, dtype=np.uint8)
    return ImageSet("noise", pixels, np.zeros(len(pixels), np.int64), ("none",))


def test_a_step_with_outliers_equals_plain_torch(images: ImageSet) -> None:
    few, outliers = images.take(range(16)), noise(images)
    config = TrainingConfig(
        epochs=1, batch_size=16, padding=0, flip="never", outlier_loss=0.5, label_smoothing=0.0
    )
    trained, rows = train_backbone(NETWORK, config, few, few, outliers=outliers)
    torch.manual_seed(config.seed)
    plain = ResNet18(NETWORK).train()
    (batch,) = batches(few, config, 0, outliers=outliers)
    assert len(batch.images) == 32
    drawn = {image.tobytes() for image in outliers.read()}
    assert all(image.numpy().tobytes() in drawn for image in batch.images[16:])
    sgd = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    log_p = plain.classifier(plain.encode(batch.images)[0]).log_softmax(1)
    loss = -log_p[:16].gather(1, batch.labels[:, None]).mean() - 0.5 * log_p[16:].mean()
    loss.backward()
    sgd.step()
    assert rows[0].loss == pytest.approx(loss.item(), rel=1e-5)
    for (name, ours), theirs in zip(trained.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6), name


def test_feature_normalisation_reaches_the_loss_and_not_the_network(images: ImageSet) -> None:
    few = images.take(range(16))
    config = TrainingConfig(
        epochs=1, batch_size=16, padding=0, flip="never", feature_norm=True, label_smoothing=0.0
    )
    settings = dataclasses.replace(NETWORK, temperature=0.2)
    network, rows = train_backbone(settings, config, few, few)
    torch.manual_seed(config.seed)
    plain = ResNet18(settings).train()
    (batch,) = batches(few, config, 0)

    def expected(z: torch.Tensor, network: ResNet18, labels: torch.Tensor) -> float:
        weight, bias = network.classifier.state_dict().values()
        logits = (z / z.norm(dim=1, keepdim=True) / 0.2) @ weight.T + bias
        return -logits.log_softmax(1).gather(1, labels[:, None]).mean().item()

    before = plain(batch.images).features["z"].detach()
    assert rows[0].loss == pytest.approx(expected(before, plain, batch.labels), rel=1e-5)
    outputs, labels = extract(network, few), torch.from_numpy(few.labels)
    assert isinstance(network, ResNet18)
    after = expected(outputs.features["z"], network, labels)
    assert rows[0].validation_loss == pytest.approx(after, rel=1e-5)
    # Afterwards the features have their length, divided by the temperature.
    weight, bias = network.classifier.state_dict().values()
    assert torch.allclose(outputs.logits, outputs.features["z"] / 0.2 @ weight.T + bias, atol=1e-4)
    assert outputs.classifier is not None
    assert torch.allclose(outputs.classifier.weight, weight / 0.2)


def test_every_image_comes_in_all_four_rotations(images: ImageSet) -> None:
    config = dataclasses.replace(CONFIG, batch_size=32, rotation_loss=1.0, rotated=3.0)
    for batch in batches(images, config, 0):
        assert len(batch.images) == 4 * 32
        assert batch.turns.tolist() == [turn for turn in range(4) for _ in range(32)]
        for row in range(4 * 32):
            upright = batch.images[row % 32].numpy()
            assert np.array_equal(batch.images[row].numpy(), np.rot90(upright, row // 32, (1, 2)))


def test_logit_normalisation_reaches_the_loss(images: ImageSet) -> None:
    few = images.take(range(16))
    config = TrainingConfig(
        epochs=1, batch_size=16, padding=0, flip="never", logit_norm=0.3, label_smoothing=0.2
    )
    network, rows = train_backbone(NETWORK, config, few, few)
    plain, batch = begun_in_plain_torch(config, few)
    logits = plain(batch.images).logits.detach()

    def expected(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> float:
        log_p = (logits / logits.norm(dim=1, keepdim=True) / 0.3).log_softmax(1)
        right = log_p.gather(1, labels[:, None]).mean()
        return -((1 - smoothing) * right + smoothing * log_p.mean()).item()

    assert rows[0].loss == pytest.approx(expected(logits, batch.labels, 0.2), rel=1e-5)
    # The validation loss, which decides when to stop, is of the same kind.
    after, labels = extract(network, few).logits, torch.from_numpy(few.labels)
    assert rows[0].validation_loss == pytest.approx(expected(after, labels, 0.0), rel=1e-5)


def test_an_option_that_cannot_be_is_an_error(images: ImageSet) -> None:
    config = dataclasses.replace(CONFIG, logit_norm=0.04)
    with pytest.raises(UsageError, match="dropout has a loss of its own"):
        train_backbone(dataclasses.replace(NETWORK, classifier="dropout"), config, images, images)
    oblong = ImageSet("oblong", images.read()[:, :, :12], images.labels, images.classes)
    config = dataclasses.replace(CONFIG, rotation_loss=0.5)
    with pytest.raises(UsageError, match="oblong has 12×16"):
        train_backbone(dataclasses.replace(NETWORK, rotations=True), config, oblong, oblong)
    with pytest.raises(UsageError, match="build it with NetworkConfig"):
        train_backbone(NETWORK, config, images, images)
    config = dataclasses.replace(CONFIG, feature_norm=True)
    with pytest.raises(UsageError, match="for a linear classifier that reads z"):
        train_backbone(dataclasses.replace(NETWORK, classifier="epinet"), config, images, images)
    with pytest.raises(UsageError, match="for a linear classifier that reads z"):
        concat = dataclasses.replace(NETWORK, representation="concat")
        train_backbone(concat, config, images, images)
    with pytest.raises(UsageError, match="give both or neither"):
        train_backbone(NETWORK, CONFIG, images, images, outliers=images)
    exposed = dataclasses.replace(CONFIG, outlier_loss=0.5)
    with pytest.raises(UsageError, match="give both or neither"):
        train_backbone(NETWORK, exposed, images, images)
    with pytest.raises(UsageError, match="Outliers must be images of the form"):
        train_backbone(NETWORK, exposed, images, images, outliers=oblong)
    config = dataclasses.replace(CONFIG, epochs=1, pixmix=1.0)
    _, rows = train_backbone(NETWORK, config, oblong, oblong)
    assert math.isfinite(rows[0].loss)


@pytest.mark.needs("bfloat16 convolution")
def test_bfloat16_is_for_feature_maps_alone(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.training.precision.multiplies_bfloat16", lambda _: True)
    few = images.take(range(16))
    config = TrainingConfig(epochs=1, batch_size=16, padding=0, flip="never", precision="bfloat16")
    seen: list[tuple[torch.dtype, torch.dtype]] = []
    original = LinearClassifier.loss

    def watched(
        self: LinearClassifier, hidden: torch.Tensor, *rest: object, **settings: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        loss, logits = original(self, hidden, *rest, **settings)  # type: ignore[arg-type]
        seen.append((hidden.dtype, logits.dtype))
        return loss, logits

    monkeypatch.setattr(LinearClassifier, "loss", watched)
    network = NetworkConfig(num_classes=3, width=8, architecture="fast_cnn", representation="plain")
    rounded, _ = train_backbone(network, config, few, few)
    whole, _ = train_backbone(network, dataclasses.replace(config, precision="float32"), few, few)
    assert seen == [(torch.float32, torch.float32)] * 2
    before = _begin(network, config, few, torch.device("cpu")).network.state_dict()
    for (name, ours), theirs in zip(rounded.named_parameters(), whole.parameters(), strict=True):
        assert ours.dtype == torch.float32
        if theirs.requires_grad:
            steps = (ours - before[name]).flatten(), (theirs - before[name]).flatten()
            assert 0.98 < torch.cosine_similarity(*steps, dim=0) < 1, name


@pytest.mark.needs("bfloat16 convolution")
def test_a_processor_without_bfloat16_is_warned_of(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.training.precision.multiplies_bfloat16", lambda _: False)
    config = dataclasses.replace(CONFIG, epochs=1, precision="bfloat16")
    with pytest.warns(GoenWarning, match="twenty times as long"):
        train_backbone(NETWORK, config, images, images)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_process_has_its_rows_and_its_own_stream(images: ImageSet, rank: int) -> None:
    config = dataclasses.replace(CONFIG, batch_size=16, flip="random", seed=5)
    found = next(iter(batches(images, config, 3, rank, 2)))
    stream = torch.Generator().manual_seed(5_000_018)
    rows = torch.randperm(len(images), generator=stream)[:16][rank::2].numpy()
    if rank:
        stream.manual_seed(10_000_000_005_000_018)
    pixels = torch.from_numpy(images.read(rows))
    expected = random_crop_flip(pixels, stream, padding=config.padding, border=config.border)
    assert torch.equal(found.images, expected)
    assert found.labels.tolist() == images.labels[rows].tolist()


def test_the_numbers_of_the_classifier_are_a_stream_of_their_own(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds, seeded = [], backbone.seeded

    def noted(seed: int, device: torch.device) -> AbstractContextManager[None]:
        seeds.append(seed)
        return seeded(seed, device)

    monkeypatch.setattr(backbone, "seeded", noted)
    train_backbone(NETWORK, dataclasses.replace(CONFIG, epochs=2, seed=5), images, images)
    assert seeds[-2:] == [5_500_024, 5_500_025]  # those of the images are 5,000,015 and one more


def test_images_of_every_shape_are_resized_to_squares() -> None:
    pixels = np.zeros((4, 3, 12, 16), np.uint8)
    wide = ImageSet("wide", pixels, np.zeros(4, int), ("a",))
    config = TrainingConfig(epochs=4, batch_size=4, sizes=((1, 8), (1, 12), (1, 16)))
    shapes = [next(iter(batches(wide, config, epoch))).images.shape[2:] for epoch in range(4)]
    assert shapes == [(8, 8), (12, 12), (16, 16), (12, 16)]
    costs = [relative_cost(config, wide, epoch) for epoch in range(4)]
    assert costs == [64 / 192, 144 / 192, 256 / 192, 1]


def test_smaller_images_are_foreseen_to_cost_less(caplog: pytest.LogCaptureFixture) -> None:
    digits = protocol("digits")
    config = TrainingConfig(epochs=3, batch_size=64, flip="never", sizes=((2, 16),))
    costs = [relative_cost(config, digits.train, epoch) for epoch in range(3)]
    assert costs == [0.25, 0.25, 1.0]
    network = NetworkConfig(num_classes=7, width=4)
    with caplog.at_level(logging.INFO, "goen"):
        train_backbone(network, config, digits.train, digits.validation)
    foreseen = [r.getMessage() for r in caplog.records if "first 5 steps" in r.getMessage()]
    assert len(foreseen) == 1
