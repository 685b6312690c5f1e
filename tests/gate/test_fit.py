"""A gate for models that goen never saw: what comes out, and what a user can get wrong."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import goen
from goen.data import ImageSet
from goen.errors import DataError, FitError, LeakError, UsageError
from goen.gate import Gate
from goen.gate._passes import check_enough, parted

from ..models.architectures import CASES, build, pictures
from ..own_model import LAYERS, DigitNet, digits, ood, preprocess, trained


def fit(**changes: object) -> Gate:
    p = digits()
    settings: dict = {"train": p.train, "held_out": p.validation, "layers": LAYERS}
    settings |= {"preprocess": preprocess, **changes}
    model = settings.pop("model", None) or trained()
    return Gate.fit(model, settings.pop("train"), settings.pop("held_out"), **settings)


@pytest.fixture(scope="module")
def gate() -> Gate:
    return fit()


# What comes out


@pytest.mark.parametrize("name", ["plain", "resnet", "vit", "dict", "tuple", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
def test_any_architecture_gets_a_gate(name: str, dtype: torch.dtype) -> None:
    # 8 to 224 pixels, 2 to 1,000 classes, maps, tokens, dicts and tuples.
    case, model = CASES[name], build(name)

    def images(count: int, seed: int) -> Tensor:
        made = pictures(name, count, seed)
        return made if dtype == torch.uint8 else (made / 255).to(dtype)

    labels = torch.arange(40) % case.classes
    tokens = "class" if name == "vit" else "mean"
    gate = Gate.fit(
        model, (images(40, 1), labels), images(20, 2), layers=case.layers, tokens=tokens,
        false_alarm_rate=0.2, batch_size=16,
    )  # fmt: skip
    p = gate.predict(images(3, 3))
    logits, _ = case.by_hand(model, pictures(name, 3, 3) / 255)
    assert (p.label == logits.argmax(1).numpy()).all()
    assert len(gate.classes) == case.classes
    assert gate.image_size == (case.size, case.size)
    assert list(p.cues) == [*case.layers, "entropy"]
    assert np.isfinite(p.score).all()
    assert (p.is_ood == (p.score > gate.threshold)).all()


def test_it_knows_its_own_and_flags_strangers(gate: Gate) -> None:
    known = gate.predict_set(digits().test)
    assert known.is_ood.mean() < 0.1
    assert (known.label == digits().test.labels).mean() > 0.8
    for name in ("photographs", "noise"):
        strange = gate.predict_set(digits().evaluation[name].images)
        assert strange.is_ood.mean() > 0.9
        assert goen.metrics.ood_metrics(known.score, strange.score).auroc > 0.98
        assert strange.probability is None
    told = gate.predict(digits().evaluation["noise"].images.read([0]))
    assert told.explain().startswith("early: p = 0.0055, late: p = ")
    assert gate.facts["splits"]["train"]["images"] == 664
    assert gate.facts["held_out_accuracy"] > 0.8


def test_p_values_of_cues_are_counted(gate: Gate) -> None:
    p = gate.predict(digits().test.read(range(5)))
    reference = gate.scorer.id_cues_.numpy()
    assert len(reference) == 180
    for column, name in enumerate(p.cues):
        for value, found in zip(p.cues[name], p.cue_p_values[name], strict=True):
            assert found == (1 + (reference[:, column] >= value).sum()) / 181


def test_the_same_gate_from_sets_arrays_and_loaders(gate: Gate) -> None:
    p = digits()
    arrays = (p.train.read(), p.train.labels)
    loader = DataLoader(TensorDataset(*map(torch.from_numpy, arrays)), batch_size=50, shuffle=False)
    held = (p.validation.read(i) for i in np.array_split(np.arange(300), 7))
    tensors = (torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1]).to(torch.int32))
    for train, held_out in [(arrays, p.validation.read()), (loader, held), (tensors, p.validation)]:
        other = fit(train=train, held_out=held_out)
        assert np.allclose(other.held_out_scores, gate.held_out_scores, atol=2e-4)
    assert other.classes == tuple("0123456")


def test_a_generator_of_batches_is_read_once_and_never_held() -> None:
    p, alive, most = digits(), 0, 0

    class Counted:
        def __init__(self) -> None:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def stream() -> Iterator[tuple[Tensor, Tensor]]:
        for rows in np.array_split(np.arange(len(p.train)), 20):
            batch = torch.from_numpy(p.train.read(rows))
            batch.held = Counted()
            yield batch, torch.from_numpy(p.train.labels[rows])
            del batch

    assert len(fit(train=stream()).held_out_scores) == 120
    assert most <= 3


def test_ood_images_give_weights_and_a_probability(gate: Gate) -> None:
    several = fit(ood=ood())
    assert list(several.scorer.ood_cues_) == ["photographs", "noise"]
    assert (several.scorer.weights_ >= 0).all()
    strange = several.predict_set(digits().evaluation["photographs"].images)
    known = several.predict_set(digits().test)
    assert strange.probability.mean() > 0.9 > 0.2 > known.probability.mean()
    one = fit(ood=ood()["noise"].read())
    assert list(one.scorer.ood_cues_) == ["ood"]


def test_what_leaving_ood_out_costs_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    fit()
    assert "cannot say a probability" in capsys.readouterr().err


def test_held_out_images_are_parted_once() -> None:
    standard, threshold = parted(300, 0.05)
    assert (len(standard), len(threshold)) == (180, 120)
    assert sorted([*standard.tolist(), *threshold.tolist()]) == list(range(300))
    assert torch.equal(parted(300, 0.2)[0], standard)
    # A set sorted by class is parted evenly,
    for block in np.array_split(np.arange(300), 5):
        assert 0.2 < np.isin(block, threshold.numpy()).mean() < 0.6
    # and so is one whose labels repeat in any period.
    for period in range(2, 8):
        shares = np.bincount(threshold.numpy() % period, minlength=period) / 120
        assert np.abs(shares - 1 / period).max() < 0.12


def test_the_guarantee_holds_over_many_partings() -> None:
    # Scores of ID images alone, drawn again and again: standardising uses other images than the
    # threshold, so new ID images are flagged at most as often as promised.
    rng = np.random.default_rng(0)
    rates = []
    for _ in range(400):
        scores = torch.from_numpy(rng.normal(size=1100))
        standard, threshold = parted(100, 0.1)
        z = (scores - scores[standard].mean()) / scores[standard].std()
        limit = goen.gate.gate.conformal.threshold(z[threshold], 0.1)
        rates.append(float((z[100:] > limit).double().mean()))
    error = np.std(rates) / np.sqrt(len(rates))
    assert 0.1 - 0.03 < np.mean(rates) <= 0.1 + 2 * error


# The model is left as it was found


def state_of(model: nn.Module) -> list[object]:
    return [
        [m.training for m in model.modules()],
        [(p.requires_grad, p.grad is None) for p in model.parameters()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        [v.clone() for v in model.state_dict().values()],
    ]


def same(one: list[object], other: list[object]) -> bool:
    weights = all(torch.equal(a, b) for a, b in zip(one[3], other[3], strict=True))  # type: ignore[arg-type,call-overload]
    return one[:3] == other[:3] and weights


def test_the_model_is_left_as_it_was_found_also_after_an_error() -> None:
    model = trained()
    model.train()
    model.late.eval()
    model.judge.weight.requires_grad_(False)
    before = state_of(model)
    fit(model=model)
    assert same(before, state_of(model))
    p = digits()
    late_error = ((p.train.read(rows), p.train.labels[rows] + start) for start, rows in
                  enumerate([range(100), range(100, 200), range(200, 300)]))  # fmt: skip
    with pytest.raises(UsageError) as caught:
        fit(model=model, train=late_error)
    # Even while the error is held, with every frame it knows.
    assert caught.value
    assert same(before, state_of(model))


# What a user can get wrong


class Softmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = trained()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)["logits"].softmax(1)


class Noisy(DigitNet):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return super().forward(x + torch.randn_like(x))


IMAGES = np.random.default_rng(0).integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
NUMBERS = np.arange(60) % 7
ONE_BY_ONE = TensorDataset(torch.from_numpy(IMAGES), torch.from_numpy(NUMBERS))
SMALLER = IMAGES[:, :, :16, :16]

LABELS = {
    "Labels lie in 0 .. 6 for 7 classes, got 1 .. 7": (IMAGES, NUMBERS + 1),
    "integer labels": (IMAGES, NUMBERS / 1.0),
    "60 images need as many labels, got 9": (IMAGES, NUMBERS[:9]),
    r"labels of shape \(60, 1\)": [(IMAGES, NUMBERS[:, None])],
    "train needs labels": IMAGES,
}
PICTURES = {
    "0-255": IMAGES.astype(np.float32),
    "normalised already": IMAGES / 255 * 4 - 2,
    "uint8, or floats": IMAGES.astype(np.int64),
    r"\(N, 3, H, W\), channels first": IMAGES.transpose(0, 2, 3, 1),
}
FORMS = {
    "train is an ImageSet, images .* got str": "photos/",
    "train is an ImageSet, images .* got int": 7,
    "one image at a time. Wrap it": ONE_BY_ONE,
    "train gives one image at a time": [(IMAGES[0], np.int64(3))],
    "gives batches .images, labels. of arrays or tensors; got a dict": [{"image": IMAGES}],
    "train: images are all of one size, 32×32; got 16×16": [(IMAGES, NUMBERS), (SMALLER, NUMBERS)],
}


@pytest.mark.parametrize("message", LABELS)
def test_labels_that_cannot_be_meant(message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit(train=LABELS[message])


@pytest.mark.parametrize("message", PICTURES)
def test_images_that_cannot_be_meant(message: str) -> None:
    for changes in ({"train": (PICTURES[message], NUMBERS)}, {"held_out": PICTURES[message]}):
        with pytest.raises(UsageError, match=message):
            fit(**changes)


@pytest.mark.parametrize("message", FORMS)
def test_things_that_hold_no_images(message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit(train=FORMS[message])


def test_held_out_and_ood_images_have_the_size_of_the_training_images() -> None:
    for changes in ({"held_out": SMALLER}, {"ood": {"small": SMALLER}}):
        with pytest.raises(UsageError, match="images are all of one size, 32×32; got 16×16"):
            fit(**changes)


def test_no_images_at_all() -> None:
    with pytest.raises(DataError, match="train gave no images"):
        fit(train=[])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": ("erly", "late")}, r"Did you mean 'early' \(N, 16, 8, 8\)"),
        ({"false_alarm_rate": 5}, "strictly between 0 and 1"),
        ({"model": Softmax(), "layers": "inner.late"}, "ends in a softmax"),
        ({"model": Noisy().eval()}, "not deterministic in evaluation mode"),
        ({"classes": ("a", "b")}, r"7 logits, but there are 2 class names \(a, b\)"),
        ({"scorer": "goen-n"}, "Unknown scorer 'goen-n'. Did you mean 'goen-m'"),
        ({"logits": "scores"}, "No logits .* at 'scores'"),
        ({"ood": {"seven": 7}}, "seven is an ImageSet, images .* got int"),
    ],
)
def test_models_and_settings_that_cannot_be_meant(changes: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit(**changes)


def test_too_few_held_out_images_are_counted_for_the_user() -> None:
    for held_out in (IMAGES[:30], iter([IMAGES[:30]])):
        with pytest.raises(FitError, match="needs at least 46 held-out images, got 30"):
            fit(held_out=held_out)
    with pytest.raises(FitError, match="needs at least 2496 held-out images, got 300"):
        fit(false_alarm_rate=0.001)


def test_images_in_two_places_are_noticed_by_their_content() -> None:
    p = digits()
    shared = np.concatenate([ood()["noise"].read(), p.train.read([3, 4])])
    strange = ImageSet("mixed", shared, np.zeros(len(shared), np.int64), ("mixed",))
    with pytest.raises(LeakError, match=r"ood 'mixed' shares 2 of its .* images with train"):
        fit(ood=strange)
    with pytest.raises(LeakError, match=r"shares 2 of its .* images with train"):
        fit(train=(p.train.read(), p.train.labels), ood={"copy": shared})
    with pytest.raises(LeakError, match="held_out shares 300 of its 300 images with train"):
        fit(train=p.validation)


def loader(images: np.ndarray, *more: np.ndarray, **settings: object) -> DataLoader:
    return DataLoader(TensorDataset(*map(torch.from_numpy, (images, *more))), 50, **settings)


def test_leaks_are_noticed_in_floats_and_in_what_can_be_read_only_once() -> None:
    p = digits()
    held_out = p.validation.read()
    train, labels = np.concatenate([p.train.read(), held_out[:4]]), np.zeros(668, np.int64)
    labels[: len(p.train)] = p.train.labels
    with pytest.raises(LeakError, match="held_out shares 4 of its 300 images with train"):
        fit(train=loader(train, labels), held_out=loader(held_out))
    with pytest.raises(LeakError, match="held_out shares 4 of its 300 images with train"):
        fit(train=(train, labels), held_out=iter([held_out]))
    with pytest.raises(LeakError, match="held_out shares 4 of its 300 images with train"):
        fit(train=(train / 255, labels), held_out=torch.from_numpy(held_out / 255))


def test_held_out_images_need_no_labels_whatever_comes_with_them() -> None:
    p = digits()
    images = p.validation.read()
    expected = fit().held_out_scores
    paths = [(images[i : i + 128], [f"{n}.png" for n in range(128)]) for i in (0, 128, 256)]
    for held_out in (paths, DataLoader(TensorDataset(torch.from_numpy(images)), 128)):
        assert np.allclose(fit(held_out=held_out).held_out_scores, expected, atol=1e-3)
    with pytest.raises(UsageError, match="train needs labels, whole numbers"):
        fit(train=paths, held_out=p.test)
    with pytest.raises(UsageError, match="train needs labels, whole numbers"):
        fit(train=(p.train.read(), np.array(["seven"] * len(p.train))))


def test_a_sampler_says_how_many_images_there_are() -> None:
    thrice = torch.utils.data.RandomSampler(range(30), replacement=True, num_samples=90)
    rows = DataLoader(TensorDataset(torch.from_numpy(digits().validation.read(range(30)))), 30,
                      sampler=thrice)  # fmt: skip
    assert fit(held_out=rows, false_alarm_rate=0.1).facts["splits"]["held_out"]["images"] == 90


def test_an_array_that_is_read_backwards_is_taken(gate: Gate) -> None:
    turned = digits().test.read(range(4))[:, ::-1]
    expected = gate.predict(np.ascontiguousarray(turned)).score
    assert np.array_equal(gate.predict(turned).score, expected)
    with pytest.raises(UsageError, match="uint8, or floats in"):
        gate.predict(np.array([["a"]], dtype=object))


class Wavering(DigitNet):
    """Says something else of an image alone than in a batch, as half precision does."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": super().forward(x)["logits"] * (1.0005 if len(x) == 1 else 1.0)}


def test_scores_are_raised_by_what_was_seen_of_rounding() -> None:
    model = Wavering()
    model.load_state_dict(trained().state_dict())
    gate, steady = fit(model=model.eval()), fit()
    alone, together = (np.array([float(gate.predict(part).score[0]) for part in parts])
        for parts in (digits().validation.read(range(8))[:, None],
                      [digits().validation.read([i, i]) for i in range(8)]))  # fmt: skip
    raised_by = gate.held_out_scores - steady.held_out_scores
    assert np.allclose(raised_by, 2 * np.abs(alone - together).max(), rtol=0.05, atol=3e-6)
    assert raised_by.min() > 5e-5


@pytest.mark.parametrize("seed", range(4))
def test_ties_are_ties_alone_and_in_a_batch(seed: int) -> None:
    # One ID image in ten is the same test card, farther out than all others.
    card = np.zeros((3, 32, 32), np.uint8)
    card[:, ::2] = 255
    held_out = digits().validation.read()
    held_out[::10] = card
    torch.manual_seed(seed)
    untrained = DigitNet().eval()
    gate = fit(model=untrained, held_out=held_out)
    alone = gate.predict(card)
    together = [gate.predict(np.stack([card] * count)) for count in (2, 7, 64, 128)]
    assert gate.held_out_scores[-5] == pytest.approx(alone.score[0], abs=1e-3)
    for said in (alone, *together):
        assert not said.is_ood.any()
        assert (said.p_value > 0.05).all()


@pytest.mark.parametrize(("rate", "least"), [(0.05, 46), (0.01, 246), (0.5, 10)])
def test_the_least_number_of_held_out_images_is_enough(rate: float, least: int) -> None:
    check_enough(None, rate)
    _, threshold = parted(least, rate)
    assert goen.gate.gate.conformal.threshold(np.arange(len(threshold)), rate) >= 0
    with pytest.raises(FitError, match=f"at least {least} held-out"):
        check_enough(least - 1, rate)
