from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import goen
from goen.data import ImageSet, protocol
from goen.data.images.decoding import read_image
from goen.data.input_spec import ImageInputs
from goen.data.inputs import Images
from goen.detectors import Goen
from goen.detectors.calibration_head import CalibrationHead
from goen.errors import DataError, FitError, UsageError
from goen.extraction import extract
from goen.functional import conformal
from goen.gate import Gate, HeldOut, Prediction
from goen.models import NetworkConfig, ResNet18
from goen.outputs import Outputs
from tests.own_model import LAYERS, DigitNet, digits, preprocess, trained

COLOUR = ImageInputs(3, 32, 32)


def make_gate(with_head: bool = True, held_out: int = 200) -> Gate:
    torch.manual_seed(0)
    p = protocol("digits")
    train = p.train.take(range(120))
    network = ResNet18(NetworkConfig(num_classes=7, width=2)).eval()
    detector = Goen(feature="z").fit(extract(network, train), torch.from_numpy(train.labels))
    detector.head_ = CalibrationHead().eval() if with_head else None
    rest = p.validation.take(range(held_out))
    draft = Gate(network, detector, HeldOut(np.arange(200.0)), 0.05, train.classes, COLOUR)
    scores = HeldOut(draft.predict(rest).score)
    return Gate(network, detector, scores, 0.05, train.classes, COLOUR, {"why": "a test"})


@pytest.fixture(scope="module")
def gate() -> Gate:
    return make_gate()


@pytest.fixture(scope="module")
def own_gate() -> Gate:
    return Gate.fit(
        trained(), digits().train, digits().validation, layers=LAYERS, preprocess=preprocess
    )


@pytest.fixture(scope="module")
def some_images() -> ImageSet:
    return protocol("digits").test.take(range(60))


def test_a_prediction_has_every_field(gate: Gate, some_images: ImageSet) -> None:
    p = gate.predict(some_images.read())
    assert len(p) == 60
    assert p.label.min() >= 0
    assert p.label.max() < 7
    assert ((p.confidence > 0) & (p.confidence <= 1)).all()
    assert ((p.p_value > 0) & (p.p_value <= 1)).all()
    assert p.probability is not None
    assert ((p.probability >= 0) & (p.probability <= 1)).all()
    assert (p.is_ood == (p.p_value <= 0.05)).all()
    assert (p.is_ood == (p.score > gate.threshold)).all()
    assert set(p.cues) == {"log_distance", "similarity", "entropy"}


def test_the_score_is_the_heads_logit_of_the_cues(gate: Gate, some_images: ImageSet) -> None:
    p = gate.predict(some_images.read())
    cues = np.stack([p.cues[c] for c in ("log_distance", "similarity", "entropy")], axis=1)
    assert isinstance(gate.detector, Goen)
    assert gate.detector.head_ is not None
    with torch.no_grad():
        expected = gate.detector.head_(torch.from_numpy(cues).float()).numpy()
    assert np.allclose(p.score, expected, atol=1e-6)
    u = 1 / (1 + np.exp(-p.score))
    assert np.allclose(p.probability, np.clip((u - 0.05) / 0.9, 0, 1))


def test_p_values_are_counted(gate: Gate, some_images: ImageSet) -> None:
    p = gate.predict(some_images.read())
    n = len(gate.held_out.scores)
    for score, p_value in zip(p.score, p.p_value, strict=True):
        assert p_value == (1 + sum(h >= score for h in gate.held_out.scores)) / (n + 1)


def test_without_a_head_the_distance_decides(some_images: ImageSet) -> None:
    p = make_gate(with_head=False).predict(some_images.read())
    assert p.probability is None
    assert (p.score == p.cues["log_distance"]).all()


def test_predict_is_the_prediction_of_the_outputs(gate: Gate, some_images: ImageSet) -> None:
    outputs = gate.outputs(some_images.read())
    assert list(outputs.features) == ["z"]  # what the detector reads, no more
    assert same(gate.predict_outputs(outputs), gate.predict(some_images.read()))
    with pytest.raises(UsageError, match="32×32"):
        gate.outputs(torch.zeros(1, 3, 8, 8))


def test_one_image_equals_the_same_image_among_many(gate: Gate, some_images: ImageSet) -> None:
    many = gate.predict(some_images.read())
    whole = gate.predict(some_images)
    for i in (0, 17, 59):
        for one in (gate.predict(some_images.read([i])), gate.predict(some_images.read([i])[0])):
            assert one.label[0] == many.label[i]
            assert one.is_ood[0] == many.is_ood[i]
            assert np.isclose(one.score[0], many.score[i], atol=1e-5)
    assert np.allclose(whole.score, many.score, atol=1e-5)


def test_the_network_is_left_in_the_mode_it_was_in(gate: Gate, some_images: ImageSet) -> None:
    gate.network.train()
    trained = gate.predict(some_images.read([0, 1]))
    assert gate.network.training
    gate.network.eval()
    assert (trained.score == gate.predict(some_images.read([0, 1])).score).all()


def test_the_rate_can_be_changed_without_fitting(gate: Gate, some_images: ImageSet) -> None:
    strict = gate.with_false_alarm_rate(0.01)
    assert strict.threshold >= gate.threshold
    assert (
        strict.predict(some_images.read()).p_value == gate.predict(some_images.read()).p_value
    ).all()
    assert gate.false_alarm_rate == 0.05


def test_a_held_out_set_too_small_for_the_rate_says_how_many(gate: Gate) -> None:
    with pytest.raises(FitError, match=r"needs 999 held-out .* has 200\. Fit it again"):
        gate.with_false_alarm_rate(0.001)


def test_false_alarms_stay_within_the_guarantee(gate: Gate) -> None:
    # Held-out and new ID scores of the same kind, split at random again and again.
    p = protocol("digits")
    scores = np.concatenate([gate.predict(p.validation).score, gate.predict(p.test).score])
    rng = np.random.default_rng(0)
    rates = []
    for _ in range(300):
        order = rng.permutation(len(scores))
        held_out, new = scores[order[:99]], scores[order[99:]]
        again = Gate(gate.network, gate.detector, HeldOut(held_out), 0.1, gate.classes, COLOUR)
        rates.append((new > again.threshold).mean())
    error = np.std(rates) / np.sqrt(len(rates))
    assert np.mean(rates) <= 0.1 + 2 * error
    assert np.mean(rates) >= 0.1 - 0.01 - 2 * error  # valid, and not by flagging nothing


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 32, 32, 3, dtype=torch.uint8), r"\(N, 3, H, W\)"),
        (torch.zeros(32, 32), r"\(N, 3, H, W\)"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.int64), "uint8, uint16, or floats"),
        (torch.full((2, 3, 32, 32), 200.0), "0-255"),
        (torch.full((2, 3, 32, 32), -0.5), r"lie in \[0, 1\]"),
        (
            torch.tensor([0.5, torch.nan]).view(2, 1, 1, 1).expand(2, 3, 8, 8),
            r"Images \[1\] hold NaN",
        ),
    ],
)
def test_invalid_images_are_refused(gate: Gate, images: torch.Tensor, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gate.predict(images)


def test_another_size_than_the_fitted_one_is_refused(gate: Gate) -> None:
    with pytest.raises(UsageError, match=r"of one size, 32×32; got 96×64.*guarantee"):
        gate.predict(torch.zeros(1, 3, 96, 64, dtype=torch.uint8))


def test_the_repr_is_one_line(gate: Gate) -> None:
    expected = "Gate(7 classes, Goen(feature='z'), 200 held-out scores, false_alarm_rate=0.05)"
    assert repr(gate) == expected


def test_an_empty_set_is_refused(gate: Gate, some_images: ImageSet) -> None:
    with pytest.raises(UsageError, match="has no images"):
        gate.predict(some_images.take([]))


class Reshaping(DigitNet):
    """Computes a size of its own, which fails without images: 0 elements fit any size."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return super().forward(x.reshape(len(x), 3, 32, -1))


def test_of_no_images_the_prediction_is_empty(gate: Gate) -> None:
    model = Reshaping()
    model.load_state_dict(trained().state_dict())
    with pytest.raises(RuntimeError):
        model(torch.zeros(0, 3, 32, 32))
    p = digits()
    own = Gate.fit(model.eval(), p.train, p.validation, layers=LAYERS, preprocess=preprocess)
    for one in (gate, own):
        for images in (np.zeros((0, 3, 32, 32), np.uint8), torch.zeros(0, 3, 32, 32)):
            p = one.predict(images)
            assert len(p) == 0
            assert (p.label.dtype, p.is_ood.dtype) == (np.int64, np.bool_)
            assert [values.shape for values in p.cues.values()] == [(0,)] * 3
        with pytest.raises(UsageError, match="of one size, 32×32; got 8×8"):
            one.predict(torch.zeros(0, 3, 8, 8))


def test_floats_and_bytes_give_the_same_scores(gate: Gate, some_images: ImageSet) -> None:
    batch = some_images.read(slice(0, 5))
    assert np.allclose(gate.predict(batch / 255).score, gate.predict(batch).score, atol=1e-4)


# Every form of images that Gate.fit takes

FORMS: dict[str, Callable[[ImageSet], Images]] = {
    "set": lambda s: s,
    "bytes": lambda s: s.read(),
    "tensor": lambda s: torch.from_numpy(s.read()),
    "pair": lambda s: (s.read(), s.labels),
    "pair in a list": lambda s: [s.read(), s.labels],
    "loader of images": lambda s: DataLoader(TensorDataset(torch.from_numpy(s.read())), 25),
    "loader of pairs": lambda s: DataLoader(
        TensorDataset(torch.from_numpy(s.read()), torch.from_numpy(s.labels)), batch_size=7
    ),
    "generator": lambda s: (s.read(rows) for rows in np.array_split(np.arange(len(s)), 4)),
    "generator of pairs": lambda s: (
        (s.read(rows), s.labels[rows]) for rows in np.array_split(np.arange(len(s)), 4)
    ),
    "list of batches": lambda s: list(s.batches(20)),
    "list of two batches": lambda s: list(s.batches(30)),
    "one batch in a list": lambda s: [s.read()],
}


def same(one: Prediction, other: Prediction) -> bool:
    """Equal but for the float32 of the network, which depends on the size of a batch."""
    assert list(one.cues) == list(other.cues)
    assert one.probability is not None
    assert other.probability is not None
    return (
        np.array_equal(one.label, other.label)
        and np.array_equal(one.is_ood, other.is_ood)
        and np.array_equal(one.p_value, other.p_value)
        and np.allclose(one.score, other.score, atol=1e-5)
        and np.allclose(one.confidence, other.confidence, atol=1e-5)
        and np.allclose(one.probability, other.probability, atol=1e-5)
        and all(np.allclose(one.cues[k], other.cues[k], atol=1e-4) for k in one.cues)
    )


@pytest.mark.parametrize("form", FORMS)
def test_predict_takes_whatever_fit_takes(gate: Gate, some_images: ImageSet, form: str) -> None:
    expected = gate.predict(some_images.read())
    found = gate.predict(FORMS[form](some_images), batch_size=32)
    assert len(found) == 60
    assert same(found, expected)


def test_an_array_passes_through_the_network_in_batches(
    gate: Gate, some_images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = some_images.read()
    expected = gate.predict(images)
    sizes: list[int] = []
    forward = type(gate.network).forward

    def counting(self: nn.Module, batch: torch.Tensor) -> Outputs:
        sizes.append(len(batch))
        return forward(self, batch)

    monkeypatch.setattr(type(gate.network), "forward", counting)
    assert same(gate.predict(images, batch_size=25), expected)
    assert sizes == [25, 25, 10]
    with pytest.raises(UsageError, match="A batch has at least one image"):
        gate.predict(images, batch_size=0)


def test_outputs_that_require_gradients_are_predicted_without_them(
    gate: Gate, some_images: ImageSet
) -> None:
    images = torch.from_numpy(some_images.read())
    outputs = gate.network(images)
    assert outputs.logits.requires_grad
    assert same(gate.predict_outputs(outputs), gate.predict(images))


def test_one_image_has_no_batch_axis(gate: Gate, some_images: ImageSet) -> None:
    image = some_images.read([4])[0]
    for one in (image, torch.from_numpy(image), image / 255):
        assert len(gate.predict(one)) == 1
    expected = gate.predict(some_images.read([4, 5]))
    assert gate.predict(image).label[0] == expected.label[0]
    assert gate.predict(image).score[0] == pytest.approx(expected.score[0], abs=1e-5)


def test_images_of_another_size_are_refused_in_every_form(gate: Gate) -> None:
    small = ImageSet("small", np.zeros((4, 3, 16, 16), np.uint8), np.zeros(4, np.int64), ("a",))
    for name, form in FORMS.items():
        with pytest.raises(UsageError, match=r"32×32.* got 16×16"):
            gate.predict(form(small))
            pytest.fail(name)


def test_no_images_and_a_generator_that_was_read_before_are_refused(
    gate: Gate, some_images: ImageSet
) -> None:
    batches = some_images.batches(30)
    assert len(gate.predict(batches)) == 60
    for nothing in (batches, [], iter(())):
        with pytest.raises(DataError, match=r"no images\. A generator can be read only once"):
            gate.predict(nothing)


# Thresholds per class


def test_per_class_p_values_are_counted_within_the_class(own_gate: Gate) -> None:
    mondrian = own_gate.with_false_alarm_rate(0.25).with_per_class()
    p = mondrian.predict(digits().test.read(range(40)))
    for score, label, p_value in zip(p.score, p.label, p.p_value, strict=True):
        own = own_gate.held_out.scores[own_gate.held_out.labels == label]
        assert p_value == (1 + (own >= score).sum()) / (len(own) + 1)
    assert (p.is_ood == (p.p_value <= 0.25)).all()
    assert (p.is_ood == (p.score > mondrian.class_thresholds[p.label])).all()
    plain = mondrian.with_per_class(False).predict(digits().test.read(range(40)))
    assert (plain.p_value == conformal.p_values(p.score, own_gate.held_out.scores)).all()
    assert "per class" in repr(mondrian)


def test_a_class_with_too_few_held_out_images_is_named(own_gate: Gate) -> None:
    with pytest.raises(FitError, match=r"needs 99 held-out images of each .* Too few: 0 \("):
        own_gate.with_false_alarm_rate(0.01).with_per_class()
    with pytest.raises(FitError, match="without the predicted classes"):
        make_gate().with_per_class()


# Pictures of Pillow


def test_pictures_are_resized_as_files_are(gate: Gate, tmp_path: Path) -> None:
    pixels = digits().test.read(range(5)).transpose(0, 2, 3, 1)
    sizes = [(32, 32), (90, 60), (17, 40), (224, 224), (33, 32)]
    pictures = [Image.fromarray(p).resize(s) for p, s in zip(pixels, sizes, strict=True)]
    pictures[1] = pictures[1].convert("P")
    files = [tmp_path / f"{number}.png" for number in range(5)]
    for picture, file in zip(pictures, files, strict=True):
        picture.save(file)
    expected = gate.predict(np.stack([read_image(file, gate.image_size) for file in files]))
    assert same(gate.predict(pictures), expected)
    assert same(gate.predict(tuple(pictures), batch_size=2), expected)
    for number, picture in enumerate(pictures):
        one = gate.predict(picture)
        assert len(one) == 1
        assert one.score[0] == pytest.approx(expected.score[number], abs=1e-5)


def test_pictures_that_cannot_be_used_get_a_sentence(gate: Gate, tmp_path: Path) -> None:
    Image.effect_noise((64, 64), 50).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:800])
    whole = Image.new("RGB", (50, 50))
    with Image.open(tmp_path / "cut.png") as cut, pytest.raises(DataError, match="image 1 is br"):
        gate.predict([whole, cut])
    with pytest.raises(UsageError, match="got Image"):
        gate.predict([whole, np.zeros((1, 3, 32, 32), np.uint8)])
    with pytest.raises(UsageError, match="A batch has at least one image"):
        gate.predict([whole], batch_size=0)


# Arrays


def test_the_arrays_of_a_gate_are_read_only_and_no_prediction_holds_one(own_gate: Gate) -> None:
    own = [own_gate.held_out.scores, own_gate.held_out.labels, own_gate.held_out.cues]
    own += own_gate.image_hashes.values()
    assert len(own) == 5
    for values in own:
        assert values is not None
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0
    state = [value.numpy() for value in own_gate.detector.state().values()]
    p = own_gate.predict(digits().test.read(range(4)))
    arrays = [p.label, p.confidence, p.score, p.p_value, p.is_ood]
    for values in [*arrays, *p.cues.values(), *p.cue_p_values.values()]:
        assert not any(np.shares_memory(values, part) for part in [*own, *state])


def test_the_arrays_that_a_gate_is_made_of_stay_writeable() -> None:
    scores, hashes = np.arange(200.0), np.arange(3)
    made = make_gate()
    made = replace(made, held_out=HeldOut(scores), image_hashes={"train": hashes})
    scores[0] = hashes[0] = 7
    assert made.held_out.scores[0] == 0
    assert not made.image_hashes["train"].flags.writeable


class _MakesTensors(nn.Module):
    """A user's model that makes tensors where torch makes them unless it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.devices = trained(), set[str]()

    def forward(self, x: Tensor) -> Tensor:
        self.devices.add(torch.zeros(1).device.type)
        out: Tensor = self.inner(x)
        return out


def test_torchs_default_device_does_not_matter(tmp_path: Path) -> None:
    p = digits()
    gate = make_gate()
    images = p.test.read(range(8))
    expected = gate.predict(images)
    model = _MakesTensors().eval()
    with torch.device("meta"):
        gate.save(tmp_path / "gate")
        loaded = goen.load(tmp_path / "gate")
        assert np.array_equal(loaded.predict(images).score, expected.score)
        own = Gate.fit(model, p.train, p.validation, preprocess=preprocess)
        own.predict(images)
        rows = np.random.default_rng(0).normal(size=(200, 4))
        Gate.fit_outputs(rows[:100], np.arange(100) % 2, rows[100:]).predict_outputs(rows)
        goen.Monitor(own).update(own.predict(images))
    # Its own tensors are where its user has them, all the while.
    assert model.devices == {"meta"}
