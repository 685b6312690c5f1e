"""Gates for models from outside: what is fitted, and what a user can get wrong."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, TensorDataset

import goen
from goen.data import ImageSet
from goen.data.input_spec import ImageInputs
from goen.errors import DataError, FitError, GoenWarning, LeakError, UsageError
from goen.features.extractor import FeatureExtractor
from goen.gate import Gate
from goen.gate.fitting.fit import gate_network, name_classes
from goen.models import NetworkConfig, ResNet18
from tests.features.architectures import CASES, build, pictures
from tests.own_model import LAYERS, DigitNet, digits, ood, preprocess, trained


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


@pytest.mark.parametrize(("detector", "logged"), [("knn", 1), ("energy", 0)])
def test_chosen_layers_are_logged_for_a_detector_that_reads_them(
    detector: str, logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "goen"):
        fit(layers="auto", detector=detector)
    assert sum("Layers chosen" in message for message in caplog.messages) == logged


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


def test_id_images_pass_and_ood_images_are_flagged(gate: Gate) -> None:
    passed = gate.predict(digits().test)
    assert passed.is_ood.mean() < 0.1
    assert (passed.label == digits().test.labels).mean() > 0.8
    for name in ("photographs", "noise"):
        flagged = gate.predict(digits().evaluation[name].images)
        assert flagged.is_ood.mean() > 0.9
        assert goen.metrics.ood_metrics(passed.score, flagged.score).auroc > 0.98
        assert flagged.probability is None
    one = gate.predict(digits().evaluation["noise"].images.read([0]))
    assert str(one.explain()).startswith("early: p = 0.0083, late: p = ")
    assert gate.metadata["splits"]["train"]["images"] == 664
    assert gate.metadata["held_out_accuracy"] > 0.8


def test_p_values_of_cues_are_counted(gate: Gate) -> None:
    p = gate.predict(digits().test.read(range(5)))
    reference = gate.held_out.cues
    assert reference is not None
    assert len(reference) == 120
    for column, name in enumerate(p.cues):
        for value, found in zip(p.cues[name], p.cue_p_values[name], strict=True):
            assert found == (1 + (reference[:, column] >= value).sum()) / 121


def test_the_same_gate_from_sets_arrays_and_loaders(gate: Gate) -> None:
    p = digits()
    arrays = (p.train.read(), p.train.labels)
    loader = DataLoader(TensorDataset(*map(torch.from_numpy, arrays)), batch_size=50, shuffle=False)
    held = (p.validation.read(i) for i in np.array_split(np.arange(300), 7))
    tensors = (torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1]).to(torch.int32))
    for train, held_out in [(arrays, p.validation.read()), (loader, held), (tensors, p.validation)]:
        other = fit(train=train, held_out=held_out)
        assert np.allclose(other.held_out.scores, gate.held_out.scores, atol=2e-4)
    assert other.classes == tuple("0123456")


def test_the_same_gate_from_folders_and_files(gate: Gate, tmp_path: Path) -> None:
    p = digits()
    folders = {"train": p.train, "held_out": p.validation}
    for name, images in folders.items():
        for number, (image, label) in enumerate(zip(images.read(), images.labels, strict=True)):
            place = tmp_path / name / images.classes[label]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0)).save(place / f"{number:04}.png")
    few = sorted((tmp_path / "held_out").rglob("*.png"))
    found = fit(train=tmp_path / "train", held_out=few, calibration=0.6)
    assert found.classes == gate.classes
    assert found.metadata["train_accuracy"] == gate.metadata["train_accuracy"]
    assert "held_out_accuracy" not in found.metadata  # files have no labels
    images = p.test.read(range(9))
    whole = fit(train=tmp_path / "train", held_out=str(tmp_path / "held_out"))
    assert whole.metadata["held_out_accuracy"] == gate.metadata["held_out_accuracy"]
    # The same images in the order of the files: all cues are equal, but for rounding.
    expected = gate.predict(images)
    for cue, values in whole.predict(images).cues.items():
        np.testing.assert_allclose(values, expected.cues[cue], rtol=1e-4, atol=1e-4)
    updated = whole.update(held_out=few).gate
    assert len(updated.held_out) == len(whole.held_out)
    with pytest.raises(LeakError, match="held_out shares"):
        fit(train=tmp_path / "train", held_out=tmp_path / "train")


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

    assert len(fit(train=stream()).held_out.scores) == 120
    assert most <= 3


def test_ood_images_give_weights_and_a_probability(gate: Gate) -> None:
    several = fit(ood=ood())
    assert list(several.detector.ood_cues_) == ["photographs", "noise"]
    assert (several.detector.weights_ >= 0).all()
    flagged = several.predict(digits().evaluation["photographs"].images)
    passed = several.predict(digits().test)
    assert flagged.probability.mean() > 0.9 > 0.2 > passed.probability.mean()
    one = fit(ood=ood()["noise"].read())
    assert list(one.detector.ood_cues_) == ["ood"]


def test_the_cost_of_no_ood_images_is_logged(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("INFO", logger="goen")
    fit()
    (record,) = caplog.records
    assert "it returns no probability" in record.getMessage()
    assert capsys.readouterr() == ("", "")  # a library prints nothing


# The model is left unchanged


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


def test_the_model_is_left_unchanged_also_after_an_error() -> None:
    model = trained()
    model.train()
    model.late.eval()
    model.head.weight.requires_grad_(False)
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
    "Labels lie in 0 .. 6 for 7 classes, got 7. Do they count from 0?": (IMAGES, NUMBERS + 1),
    "integer labels": (IMAGES, NUMBERS / 1.0),
    "60 images need as many labels, got 9": (IMAGES, NUMBERS[:9]),
    r"labels of shape \(60, 1\)": [(IMAGES, NUMBERS[:, None])],
    "train needs integer labels": IMAGES,
}
PICTURES = {
    "0-255": IMAGES.astype(np.float32),
    "normalised already": IMAGES / 255 * 4 - 2,
    "uint8, uint16, or floats": IMAGES.astype(np.int64),
    r"\(N, [3C], H, W\), channels first": IMAGES.transpose(0, 2, 3, 1),
}
FORMS = {
    "photos/* is neither a folder nor a known set": "photos/",
    "train is an ImageSet, a path .* got int": 7,
    "one image at a time. Wrap it": ONE_BY_ONE,
    "train gives one image at a time": [(IMAGES[0], np.int64(3))],
    "gives batches .images, labels. of arrays or tensors; got dict": [{"image": "a.png"}],
    "train: images are all of one size, 32×32; got 16×16": [(IMAGES, NUMBERS), (SMALLER, NUMBERS)],
}


@pytest.mark.parametrize("message", LABELS)
def test_invalid_labels(message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit(train=LABELS[message])


def test_the_names_of_the_classes_may_be_an_array() -> None:
    names = np.array(list("abcdefg"))
    assert fit(classes=names).classes == tuple("abcdefg")
    assert name_classes(np.array([3, 4]), 2) == ("3", "4")
    assert name_classes([], 2) == ("0", "1")


@pytest.mark.parametrize("message", PICTURES)
def test_invalid_images(message: str) -> None:
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
    with pytest.raises(DataError, match="train has no images"):
        fit(train=[])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": ("erly", "late")}, r"Did you mean 'early' \(N, 16, 8, 8\)"),
        ({"false_alarm_rate": 5}, "strictly between 0 and 1"),
        ({"model": Softmax(), "layers": "inner.late"}, "ends in a softmax"),
        ({"model": Noisy().eval()}, "not deterministic in evaluation mode"),
        ({"classes": ("a", "b")}, r"7 logits, but there are 2 class names \(a, b\)"),
        ({"layers": ()}, r"Name the layers .* listed by goen\.list_layers"),
        ({"logits": "scores"}, "No logits .* at 'scores'"),
        ({"ood": {"seven": 7}}, "seven is an ImageSet, a path .* got int"),
    ],
)
def test_invalid_models_and_settings(changes: dict, message: str) -> None:
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
    mixed = ImageSet("mixed", shared, np.zeros(len(shared), np.int64), ("mixed",))
    with pytest.raises(LeakError, match=r"ood mixed shares 2 of its .* images with train"):
        fit(ood=mixed)
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
    expected = fit().held_out.scores
    paths = [(images[i : i + 128], [f"{n}.png" for n in range(128)]) for i in (0, 128, 256)]
    for held_out in (paths, DataLoader(TensorDataset(torch.from_numpy(images)), 128)):
        assert np.allclose(fit(held_out=held_out).held_out.scores, expected, atol=1e-3)
    with pytest.raises(UsageError, match="train needs integer labels"):
        fit(train=paths, held_out=p.test)
    with pytest.raises(UsageError, match="train needs integer labels"):
        fit(train=(p.train.read(), np.array(["seven"] * len(p.train))))


@pytest.mark.filterwarnings("ignore:.*which is the threshold")  # if the highest is drawn often
def test_a_sampler_says_how_many_images_there_are() -> None:
    thrice = torch.utils.data.RandomSampler(range(30), replacement=True, num_samples=90)
    rows = DataLoader(TensorDataset(torch.from_numpy(digits().validation.read(range(30)))), 30,
                      sampler=thrice)  # fmt: skip
    with pytest.warns(GoenWarning, match="are copies of others"):
        found = fit(held_out=rows, false_alarm_rate=0.1)
    assert found.metadata["splits"]["held_out"]["images"] == 90


def test_an_array_that_is_read_backwards_is_taken(gate: Gate) -> None:
    turned = digits().test.read(range(4))[:, ::-1]
    expected = gate.predict(np.ascontiguousarray(turned)).score
    assert np.array_equal(gate.predict(turned).score, expected)
    with pytest.raises(UsageError, match="uint8, uint16, or floats in"):
        gate.predict(np.array([["a"]], dtype=object))


@pytest.mark.parametrize("layers", [("layer1.0", "layer4"), ("projection",)])
def test_other_layers_of_goens_own_network_are_tapped(layers: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    network = ResNet18(NetworkConfig(num_classes=7, width=4)).eval()
    p = digits()
    gate = Gate.fit(network, p.train, p.validation, layers=layers)
    assert np.isfinite(gate.predict(p.test.read(range(3))).score).all()


# A FeatureExtractor in place of model and layers


def test_a_tapped_model_gives_the_same_gate_as_model_and_layers(gate: Gate) -> None:
    p = digits()
    extractor = FeatureExtractor(trained(), LAYERS, preprocess=preprocess)
    other = Gate.fit(extractor, p.train, p.validation)
    assert other.threshold == gate.threshold
    assert np.array_equal(other.held_out.scores, gate.held_out.scores)
    images = p.test.read(range(40))
    found, expected = other.predict(images), gate.predict(images)
    assert np.array_equal(found.score, expected.score)
    assert np.array_equal(found.p_value, expected.p_value)
    assert other.metadata == gate.metadata
    assert other.network is extractor


@pytest.mark.parametrize(
    "settings",
    [
        {"layers": LAYERS},
        {"layers": ()},
        {"logits": "logits"},
        {"logits": 0},
        {"preprocess": preprocess},
        {"tokens": "class"},
        {"layout": "channels_first"},
    ],
)
def test_settings_beside_a_tapped_model_are_refused(settings: dict) -> None:
    extractor = FeatureExtractor(trained(), LAYERS, preprocess=preprocess)
    with pytest.raises(UsageError, match=r"give them to goen\.FeatureExtractor"):
        Gate.fit(extractor, digits().train, digits().validation, **settings)


def test_no_layers_are_not_the_layers_that_goen_chooses() -> None:
    for none in ((), ""):
        with pytest.raises(
            UsageError, match=r"goen chooses. Layers are listed by goen\.list_layers"
        ):
            Gate.fit(trained(), digits().train, digits().validation, layers=none)


def test_layers_are_chosen_by_default(gate: Gate) -> None:
    images = digits().test.read(range(20))
    for settings in ({}, {"layers": "auto"}):
        chosen = Gate.fit(
            trained(), digits().train, digits().validation, preprocess=preprocess, **settings
        )
        assert chosen.network.layers == LAYERS  # type: ignore[union-attr]
        assert np.array_equal(chosen.predict(images).score, gate.predict(images).score)


def test_autocast_of_the_caller_changes_nothing(gate: Gate, tmp_path: Path) -> None:
    test = digits().test.take(range(30))
    expected = gate.predict(test.read()).score
    with torch.autocast("cpu", torch.bfloat16):
        fitted = fit()
        fitted.save(tmp_path / "gate")
        loaded = goen.load(tmp_path / "gate", model=DigitNet(), preprocess=preprocess)
        updated = fitted.update(held_out=digits().validation).gate
        for one in (gate, fitted, loaded, updated):
            for images in (test, test.read()):
                assert np.array_equal(one.predict(images).score, expected)
        assert torch.is_autocast_enabled("cpu")


# Misuse


def test_a_classifier_no_better_than_chance_is_a_warning() -> None:
    with pytest.warns(GoenWarning, match=r"no better than chance \(14\.3%\). Is the preprocessing"):
        fit(preprocess=lambda x: 1 - 9 * x)
    p = digits()
    with pytest.warns(GoenWarning, match="labels count the classes in another order"):
        fit(held_out=(p.validation.read(), (p.validation.labels + 1) % 7))


def test_without_labels_of_held_out_images_those_of_the_training_images_count() -> None:
    p = digits()
    unlabelled = p.validation.read()
    with pytest.warns(GoenWarning, match="of the training images, no better than chance"):
        fit(held_out=unlabelled, preprocess=lambda x: 1 - 9 * x)
    with pytest.warns(GoenWarning, match="of the training images, no better than chance"):
        fit(train=(p.train.read(), np.roll(p.train.labels, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "held_out_accuracy" not in fit(held_out=unlabelled).metadata


def test_preprocessing_that_is_no_function_is_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"goen\.Preprocess\(mean, std, size\) or a function"):
        fit(preprocess=((0.5,) * 3, (0.2,) * 3))


def with_wrong_labels(labels: np.ndarray, share: float) -> np.ndarray:
    """Some of the labels, evenly spaced, replaced by the next."""
    wrong = np.floor(np.arange(len(labels)) * share) != np.floor(
        (np.arange(len(labels)) - 1) * share
    )
    return np.where(wrong, (labels + 1) % 7, labels)


def test_a_model_that_knows_the_held_out_images_better_is_a_warning() -> None:
    p = digits()
    worse = (p.train.read(), with_wrong_labels(p.train.labels, 0.4))
    with pytest.warns(GoenWarning, match=r"Are the two swapped, or was it trained on the held-o"):
        gate = fit(train=worse)
    assert 0.55 < gate.metadata["train_accuracy"] < 0.65


def test_a_model_that_does_not_know_its_training_images_is_a_warning() -> None:
    p = digits()
    train = (p.train.read(), with_wrong_labels(p.train.labels, 0.6))
    held_out = (p.validation.read(), with_wrong_labels(p.validation.labels, 0.6))
    with pytest.warns(GoenWarning, match=r"of its training images\. Is that what it should"):
        fit(train=train, held_out=held_out)
    slightly = (p.train.read(), with_wrong_labels(p.train.labels, 0.05))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(train=slightly)


def test_copies_among_the_held_out_images_are_a_warning(gate: Gate) -> None:
    # As a sampler with replacement draws them: 100 images do not become 300 by that.
    few = np.concatenate([digits().validation.read(range(100))] * 3)
    message = "200 of the 300 held-out images are copies of others, pixel for pixel"
    with pytest.warns(GoenWarning, match=message) as caught:
        fit(held_out=few)
    assert caught[0].filename == __file__
    with pytest.warns(GoenWarning, match=message) as caught:
        gate.update(held_out=iter([few]))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(held_out=np.concatenate([few[:100], few[:5]]))


def test_a_good_classifier_is_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit().metadata["held_out_accuracy"] > 0.9


class Sigmoid(nn.Module):
    """Probabilities of each class by itself, as of a model with several labels per image."""

    def __init__(self) -> None:
        super().__init__()
        self.model = trained()

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.model(x)["logits"])


def test_outputs_of_a_sigmoid_are_a_warning() -> None:
    with pytest.warns(GoenWarning, match="probabilities of a sigmoid"):
        fit(model=Sigmoid(), layers=[f"model.{layer}" for layer in LAYERS])


def test_a_rounding_above_one_is_no_error(gate: Gate) -> None:
    white = interpolate(torch.ones(1, 3, 77, 77), (32, 32), mode="bilinear", antialias=True)
    for image in (white, white + 2.4e-7, white - 1 - 1e-6):
        assert gate.predict(image).score.shape == (1,)
    with pytest.raises(UsageError, match="Float images lie in"):
        gate.predict(white + 0.1)


class _Changed(ResNet18):
    """Somebody's own network, made of goen's."""


@pytest.mark.parametrize(
    "change",
    [
        {"model": nn.Linear(3, 3)},
        {"model": _Changed(NetworkConfig(num_classes=3, width=2))},
        {"model": ResNet18(NetworkConfig(num_classes=3, width=2)).half()},
        {"preprocess": preprocess},
        {"logits": "classifier"},
        {"inputs": "tensors"},
        {"layers": ("layer4", "layer3.0")},
    ],
    ids=lambda change: "-".join(change),
)
def test_only_goens_own_network_as_it_is_needs_no_extractor(change: dict[str, Any]) -> None:
    network = ResNet18(NetworkConfig(num_classes=3, width=2))
    given = {"model": network, "preprocess": None, "logits": None, "inputs": "images"}
    extractor: Any = SimpleNamespace(**given, layers=("layer4",))
    spec = ImageInputs(3, 32, 32)
    assert gate_network(extractor, flip_averaging=False, spec=spec) is network
    other: Any = SimpleNamespace(**{**vars(extractor), **change})
    assert gate_network(other, flip_averaging=False, spec=spec) is other
