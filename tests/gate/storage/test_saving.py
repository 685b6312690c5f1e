import hashlib
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import goen
from goen.data.input_spec import ImageInputs
from goen.errors import ArtifactError, UsageError
from goen.features.preprocess import Preprocess
from goen.gate import Gate
from goen.models import NetworkConfig, ResNet18
from tests.gate.test_gate import make_gate
from tests.own_model import LAYERS, DigitNet, digits, ood, trained


def fit(**changes: object) -> Gate:
    settings: dict = {"layers": LAYERS, "preprocess": Preprocess((0.3,), (0.35,)), **changes}
    model = settings.pop("model", None) or trained()
    return Gate.fit(model, digits().train, digits().validation, **settings)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Gate, Path]:
    gate, folder = fit(ood=ood()), tmp_path_factory.mktemp("gates") / "gate"
    gate.save(folder)
    return gate, folder


def test_a_saved_gate_predicts_the_same_with_a_fresh_model(saved: tuple[Gate, Path]) -> None:
    gate, folder = saved
    loaded = goen.load(folder, model=DigitNet())
    images = digits().test.read(range(30))
    one, other = gate.predict(images), loaded.predict(images)
    for name in ("label", "confidence", "score", "p_value", "probability", "is_ood"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert one.explain(3) == other.explain(3)
    assert loaded.with_per_class is not None
    assert np.array_equal(loaded.held_out.labels, gate.held_out.labels)
    assert repr(loaded) == repr(gate)


def test_no_code_is_taken_from_a_folder(saved: tuple[Gate, Path]) -> None:
    _, folder = saved
    with pytest.raises(ArtifactError, match=r"give the model.*tests.own_model:DigitNet"):
        goen.load(folder)
    names = {file.name for file in folder.iterdir()}
    assert names == {".goen", "manifest.json", "tensors.safetensors"}


def test_the_manifest_has_the_guarantee_of_each_class(tmp_path: Path) -> None:
    gate = fit().with_false_alarm_rate(0.2).with_per_class()
    gate.save(tmp_path / "gate")
    guarantee = json.loads((tmp_path / "gate" / "manifest.json").read_text())["guarantee"]
    counts = np.bincount(gate.held_out.labels)
    assert [of["held_out_images"] for of in guarantee["by_class"]] == counts.tolist()
    for of, count in zip(guarantee["by_class"], counts, strict=True):
        assert of["expected_false_alarm_rate"] == pytest.approx((count + 1) // 5 / (count + 1))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("network", "layers"), ["early", "head"]),
        (("network", "kind"), "another"),
        (("network", "dtype"), "float33"),
        (("detector", "name"), "goen-x"),
        (("detector", "name"), "knn"),
        (("detector", "features"), ["late", "early"]),
        (("detector", "widths"), [16, 23]),
        (("detector", "num_classes"), 8),
        (("classes",), ["only one"]),
        (("image_size",), [32]),
        (("image_reading",), "bilinear"),
        (("image_reading", "decode"), "grey"),
        (("image_reading", "resize"), 3),
        (("threshold",), -99.0),
        (("per_class",), None),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    saved: tuple[Gate, Path], tmp_path: Path, path: tuple[str, ...], value: object
) -> None:
    gate, _ = saved
    folder = tmp_path / "gate"
    gate.save(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    inner = manifest
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    if path == ("per_class",):
        del manifest["per_class"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError):
        goen.load(folder, model=DigitNet())


def test_the_manifest_says_how_pictures_are_read(saved: tuple[Gate, Path], tmp_path: Path) -> None:
    shutil.copytree(saved[1], tmp_path / "gate")
    file = tmp_path / "gate" / "manifest.json"
    manifest = json.loads(file.read_text())
    assert manifest["image_reading"] == {"decode": "rgb-8-bit", "resize": "bilinear-antialiased"}
    manifest["image_reading"]["resize"] = "lanczos"
    file.write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=r"resize: 'lanczos', expected 'bilinear-antialiased'"):
        goen.load(tmp_path / "gate", model=DigitNet())
    del manifest["image_reading"]  # gates of earlier versions were read in the same way
    file.write_text(json.dumps(manifest))
    assert goen.load(tmp_path / "gate", model=DigitNet()).image_size == (32, 32)


# A gate of goen run


def test_a_saved_gate_with_a_head_predicts_the_same(tmp_path: Path) -> None:
    gate, some_images = make_gate(), digits().test.take(range(60))
    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate")
    a, b = gate.predict(some_images.read()), loaded.predict(some_images.read())
    for name in ("label", "confidence", "score", "p_value", "probability", "is_ood"):
        assert (getattr(a, name) == getattr(b, name)).all(), name
    assert loaded.metadata == {"why": "a test"}
    assert loaded.classes == gate.classes
    manifest = json.loads((tmp_path / "gate" / "manifest.json").read_text())
    assert manifest["threshold"] == gate.threshold
    assert manifest["guarantee"]["held_out_images"] == 200
    names = {p.name for p in (tmp_path / "gate").iterdir()}
    assert names == {".goen", "manifest.json", "tensors.safetensors"}


def test_a_gate_that_does_not_fit_its_manifest_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "gate"
    make_gate().save(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    for path, value in [
        (("network", "width"), 3),
        (("network", "colour"), "red"),
        (("detector", "widths"), [3]),
        (("classes",), ["only one"]),
        (("threshold",), -99.0),
        (("false_alarm_rate",), None),
    ]:
        changed = json.loads(json.dumps(manifest))
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        (folder / "manifest.json").write_text(json.dumps(changed))
        with pytest.raises(ArtifactError, match="not a gate that this version of goen can load"):
            goen.load(folder)
    shutil.rmtree(folder)
    with pytest.raises(ArtifactError, match="no saved gate"):
        goen.load(folder)


# -- forged gates --------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf


def copied(folder: Path, place: Path) -> Path:
    return Path(shutil.copytree(folder, place / "forged"))


def forge_tensor(folder: Path, name: str, change: Callable[[Tensor], Tensor] | None) -> None:
    """Change a tensor, or delete it, and make the checksum right."""
    path = folder / "tensors.safetensors"
    tensors = {k: v.clone() for k, v in load_file(path).items()}
    if change is None:
        del tensors[name]
    else:
        tensors[name] = change(tensors.get(name, torch.zeros(1))).contiguous()
    save_file(tensors, path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["tensors_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def forge_field(folder: Path, path: tuple[str | int, ...], value: Any) -> None:
    """Change a field of the manifest; ``...`` deletes it."""
    manifest = json.loads((folder / "manifest.json").read_text())
    inner = manifest
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    (folder / "manifest.json").write_text(json.dumps(manifest))


def put(value: float, *place: int) -> Callable[[Tensor], Tensor]:
    """A change: one number becomes this one."""

    def change(tensor: Tensor) -> Tensor:
        tensor[place or (0,) * tensor.ndim] = value
        return tensor

    return change


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("held_out_scores", put(INF), "held_out_scores should hold finite numbers, got inf"),
        ("held_out_scores", put(NAN), "held_out_scores should hold finite numbers, got nan"),
        ("held_out_scores", lambda t: t[:, None], r"of shape \(images,\), got float64 \(.*, 1\)"),
        ("held_out_scores", lambda t: t[:0], r"of shape \(images,\), got float64 \(0,\)"),
        (
            "held_out_scores",
            lambda t: t.float(),
            "held_out_scores should be float64 .* got float32",
        ),
        ("held_out_scores", None, "no tensor held_out_scores"),
        ("held_out_labels", put(7), "held_out_labels should hold numbers from 0 to 6, got 7"),
        ("held_out_labels", put(-1), "held_out_labels should hold numbers from 0 to 6, got -1"),
        ("held_out_labels", lambda t: t[1:], "held_out_labels should be int64 of shape"),
        ("held_out_cues", lambda t: t[:, :2], r"held_out_cues should be .* 3\), got .* 2\)"),
        ("held_out_cues", put(NAN), "held_out_cues should hold finite"),
        ("held_out_properties", put(NAN), "held_out_properties should hold finite"),
        (
            "held_out_properties",
            lambda t: t[:, :4],
            r"held_out_properties should be .* 5\), got .* 4\)",
        ),
        (
            "detector.bank.unit.0",
            put(NAN),
            "detector.bank.unit.0 should hold finite numbers, got nan",
        ),
        (
            "detector.bank.unit.1",
            put(1.5),
            "detector.bank.unit.1 should hold rows of length 1, got one",
        ),
        (
            "detector.bank.unit.1",
            lambda t: t[1:],
            "detector.bank.unit.1 should be float32 of shape",
        ),
        (
            "detector.bank.labels",
            put(2**29),
            "bank.labels should hold numbers from 0 to 6, got 536870",
        ),
        ("detector.bank.counts", put(7, 2), "a sample of .* with 1 of each class at most"),
        (
            "detector.bank.sampling_keys",
            put(1.5),
            "sampling_keys should hold finite numbers from 0.0 to 1.0",
        ),
        ("detector.bank.counts", put(0), "bank.counts should hold numbers from 1, got 0"),
        ("detector.bank.counts", put(2**40), "at most 1,048,576 classes, got 1099511627776"),
        ("detector.bank.counts", put(1, 1), "its bank should be a sample of 1 images"),
        ("detector.std", put(0), "detector.std should hold finite numbers from 2.2"),
        ("detector.std", put(1e-320), "detector.std should hold finite numbers from 2.2"),
        ("detector.weights", put(1e308), "not all be 0, and give finite scores"),
        (
            "detector.weights",
            put(-1),
            "detector.weights should hold finite numbers from 0.0, got -1",
        ),
        ("detector.weights", lambda t: t * 0, "its weights should not all be 0"),
        ("detector.weights", lambda t: t[1:], r"weights should be float64 of shape \(3,\)"),
        ("detector.mean", put(NAN), "detector.mean should hold finite numbers, got nan"),
        ("detector.bias", put(INF), "detector.bias should hold finite numbers, got inf"),
        ("detector.bias", None, "no tensor detector.bias"),
        ("detector.id_cues", put(-1), "id_cues of [a-z0-9]+ should hold finite numbers from"),
        (
            "detector.ood_cues.noise",
            put(1e300),
            "ood_cues.noise of [a-z0-9]+ should hold finite numbers from",
        ),
        ("detector.further", put(1), "unknown names: detector.further"),
        ("further", put(1), "unknown names: further"),
        ("image_hashes.0", put(2**62), "image_hashes.0 should hold different hashes, sorted"),
        ("image_hashes.0", lambda t: t.double(), "image_hashes.0 should be int64"),
        ("image_hashes.9", put(1), "unknown names: image_hashes.9"),
        ("probe", put(NAN), "probe should hold finite numbers, got nan"),
        ("probe", lambda t: t[:1], r"probe should be float32 of shape \(2, outputs\), got .* \(1,"),
        ("probe", lambda t: t + 1, "outputs of the network differ"),
        ("network.head.weight", lambda t: t[1:], "does not fit the weights of this gate"),
        ("network.head.weight", lambda t: t.long(), "does not fit the weights of this gate"),
    ],
)
def test_a_forged_tensor_is_refused_by_name(
    saved: tuple[Gate, Path],
    tmp_path: Path,
    name: str,
    change: Callable[[Tensor], Tensor] | None,
    message: str,
) -> None:
    folder = copied(saved[1], tmp_path)
    forge_tensor(folder, name, change)
    with pytest.raises(ArtifactError, match=message):
        goen.load(folder, model=DigitNet())


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("versions",), "x", "its versions should be an object, got 'x'"),
        (("versions", "torch"), 2, "its versions.torch should be text, got '2'"),
        (("form",), "2", "its form should be a whole number"),
        (("tensors_sha256",), None, "its tensors_sha256 should be text"),
        (("image_size",), [20_000, 20_000], "at most 4,194,304 pixels, got 20000×20000"),
        (("image_size",), [2**64, 1], "its image_size should be a list of whole numbers"),
        (("classes", 0), "\ud800", "half of a surrogate pair"),
        (("classes",), [], "held_out_labels should hold numbers from 0 to -1"),
        (("false_alarm_rate",), 1e-5, "A false-alarm rate of 1e-05 needs at least"),
        (("false_alarm_rate",), 1.5, "rate lies strictly between 0 and 1"),
        (("guarantee", "held_out_images"), 10**6, "its guarantee should be that of"),
        (("guarantee", "expected_false_alarm_rate"), 0.0, "its guarantee should be that of"),
        (("guarantee", "of_this_gate_90_percent"), [0.9, 0.1], "its guarantee should be that of"),
        (("image_hashes",), ["train", "train"], "should name each role once"),
        (
            ("metadata", "splits", "train", "images"),
            "many",
            "metadata.splits.train.images should be a",
        ),
        (("metadata", "held_out_accuracy"), 2, "held_out_accuracy should be from 0 to 1"),
        (("metadata", "factory"), {}, "its metadata.factory should be text"),
        (("further",), 1, "unknown fields: 'further'"),
        (("network", "further"), 1, "unknown fields: 'network.further'"),
        (("network", "dtype"), "load", "its network.dtype should be one of float16, .* got 'load'"),
        (("network", "logits"), True, "its network.logits should be a name or an index"),
        (("network", "preprocess", "size"), 50_000, "at most 4,194,304 pixels, got 50000×50000"),
        (("network", "preprocess", "size"), [8, 8, 8], "preprocess.size should be a height and"),
        (("network", "preprocess", "crop"), [8], "preprocess.crop should be a height and a width"),
        (("network", "preprocess", "sampling_rate"), 8000, "fields: 'network.preprocess.mean'"),
        (("network", "preprocess", "std"), [0.0], "std is one positive number per channel"),
        (("detector", "settings", "rows"), 3, "its bank should be that of 3 rows"),
        (("detector", "settings", "rows"), -1, "rows must be an integer, at least 1"),
        (("detector", "settings", "rows"), [1], "rows must be an integer, at least 1"),
        (("detector", "settings", "further"), 1, "unknown settings: further"),
        (("detector", "settings", "layers"), ["late"], "should read .*late.*, got .*early"),
        (("detector", "settings", "logit_cues"), ["up"], "Unknown cue of the logits 'up'"),
        (("detector", "settings", "logit_cues"), [7], "Unknown cue of the logits 7"),
        (("detector", "settings"), [], "its detector.settings should be an object"),
        (("detector", "features"), ["early", "early"], "was fitted on 7 classes and"),
        (("detector", "widths"), [16, 25], "its bank was fitted on another network"),
        (("detector", "num_classes"), 6, "its bank was fitted on another network"),
        (("detector", "num_classes"), 2**40, "was fitted on 1099511627776 classes"),
        (("detector", "further"), 1, "unknown fields: 'detector.further'"),
    ],
)
def test_a_forged_field_is_refused_by_name(
    saved: tuple[Gate, Path], tmp_path: Path, path: tuple[str | int, ...], value: Any, message: str
) -> None:
    folder = copied(saved[1], tmp_path)
    forge_field(folder, path, value)
    with pytest.raises(ArtifactError, match=message):
        goen.load(folder, model=DigitNet())


@pytest.fixture(scope="module")
def of_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gate with the network and the detector of goen run."""
    folder = tmp_path_factory.mktemp("gates") / "run"
    make_gate().save(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("network.bn1.weight", put(NAN), "network.bn1.weight should hold finite numbers, got nan"),
        ("network.bn1.weight", lambda t: t.double(), "bn1.weight should be float32 .* got float64"),
        ("network.conv1.weight", lambda t: t[:1], r"conv1.weight should be .*\(2, 3, 3, 3\), got"),
        ("network.bn1.bias", None, "no tensor network.bn1.bias"),
        ("network.further", put(1), "unknown names: network.further"),
        ("detector.density.counts", put(-1), "density.counts should hold numbers from 0"),
        ("detector.density.counts", put(2**60), "density.counts should hold numbers from 0 to"),
        ("detector.density.counts", lambda t: t * 0, "No rows were seen"),
        (
            "detector.density.mean_high",
            put(2.0),
            "mean_high should hold finite numbers from -1.00000",
        ),
        (
            "detector.density.mean_high",
            lambda t: t[0],
            r"mean_high should be .*\(7, 16\)",
        ),
        ("detector.density.mean_low", put(INF), "mean_low should hold finite numbers, got inf"),
        ("detector.density.within_scatter", put(NAN), "within_scatter should hold finite"),
        ("detector.density.within_scatter", lambda t: -t, "condition number"),
        (
            "detector.density.shrinkage",
            put(2.0),
            "shrinkage should hold finite numbers from 0.0 to 1",
        ),
        ("detector.density.further", put(1), "unknown names: detector.density.further"),
        ("detector.head.layers.0.bias", put(NAN), "head.layers.0.bias should hold finite"),
        ("detector.head.layers.0.bias", put(1e30), "finite numbers from -10000.0 to 10000.0"),
        (
            "detector.head.layers.0.bias",
            lambda t: t[1:],
            r"layers.0.bias should be float32 .*\(64,\)",
        ),
        (
            "detector.id_cues",
            lambda t: torch.zeros(4, 2).double(),
            "unknown names: detector.id_cues",
        ),
    ],
)
def test_a_forged_tensor_of_a_run_is_refused_by_name(
    of_a_run: Path,
    tmp_path: Path,
    name: str,
    change: Callable[[Tensor], Tensor] | None,
    message: str,
) -> None:
    folder = copied(of_a_run, tmp_path)
    forge_tensor(folder, name, change)
    with pytest.raises(ArtifactError, match=message):
        goen.load(folder)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("image_size",), [2048, 2048], "1,048,576 pixels with a ResNet-18 of width 2, got 2048"),
        (("network", "width"), 10**6, "at most 0 pixels with a ResNet-18 of width 1000000"),
        (("network", "width"), 500, r"network\..* should be float32 of shape \(500,|got 32×32"),
        (("network", "num_classes"), 2**40, "network.classifier.*should be float32"),
        (
            ("network", "mean"),
            [0.1, 0.2],
            "network.mean and network.std should be a number for each",
        ),
        (("network", "std"), [0.1, 0.2, 0.0], "those of std above 0"),
        (("network", "head"), "none", "Unknown representation 'none'"),
        (("network", "head"), "a" * 9000, "Unknown representation 'a{400,500}…. Fit it again"),
        (("network", "classifier"), ["linear"], "its network.classifier should be text"),
        (
            ("network", "flip_averaged"),
            1,
            "network.flip_averaged should be true",
        ),
        (("detector", "settings", "ridge"), -1.0, "ridge must be a number, at least 0"),
        (("detector", "settings", "ridge"), "a", "."),
        (("detector", "settings", "shrinkage"), "most", "Unknown shrinkage 'most'"),
        (("detector", "settings", "head"), {"epochs": -1}, "epochs"),
        (("detector", "settings", "head"), {"further": 1}, "further"),
        (("detector", "features"), [], "was fitted on|another network|not enough values"),
        (("detector", "features"), ["z", "y"], "was fitted on 7 classes and"),
        (("detector", "further"), 1, "unknown fields: 'detector.further'"),
    ],
)
def test_a_forged_field_of_a_run_is_refused_by_name(
    of_a_run: Path, tmp_path: Path, path: tuple[str | int, ...], value: Any, message: str
) -> None:
    folder = copied(of_a_run, tmp_path)
    forge_field(folder, path, value)
    with pytest.raises(ArtifactError, match=message):
        goen.load(folder)


def test_deep_json_is_refused(saved: tuple[Gate, Path], tmp_path: Path) -> None:
    folder = copied(saved[1], tmp_path)
    text = (folder / "manifest.json").read_text()
    for depth in (40, 100_000):
        deep = "[" * depth + "]" * depth
        (folder / "manifest.json").write_text(f'{{"deep": {deep}, {text.lstrip()[1:]}')
        with pytest.raises(ArtifactError, match="nested more than 32 deep"):
            goen.load(folder, model=DigitNet())


def test_what_could_not_be_loaded_is_not_saved(of_a_run: Path, tmp_path: Path) -> None:
    gate = goen.load(of_a_run)
    with pytest.raises(UsageError, match="image_size should have at most 1,048,576 pixels"):
        replace(gate, inputs=ImageInputs(3, 2048, 2048)).save(tmp_path / "gate")
    with pytest.raises(UsageError, match=r"A name in this gate is not Unicode: .*\\udcff"):
        replace(gate, classes=("a\udcff", *gate.classes[1:])).save(tmp_path / "gate")
    with pytest.raises(UsageError, match="at most 8,388,608 are loaded"):
        replace(gate, metadata={"text": "a" * 9_000_000}).save(tmp_path / "gate")
    assert not (tmp_path / "gate").exists()


@pytest.mark.parametrize("kind", ["linear", "dropout", "evidential", "epinet", "experts"])
def test_every_classifier_is_loaded_and_the_random_state_left_alone(
    tmp_path: Path, kind: Any
) -> None:
    gate = make_gate()
    torch.manual_seed(0)
    network = ResNet18(NetworkConfig(num_classes=7, width=2, classifier=kind)).eval()
    replace(gate, network=network).save(tmp_path / "gate")
    before = torch.random.get_rng_state()
    loaded = goen.load(tmp_path / "gate")
    assert torch.equal(torch.random.get_rng_state(), before)
    images = torch.from_numpy(digits().test.read(range(3)))
    with torch.inference_mode():
        assert torch.equal(loaded.network(images).logits, network(images).logits)
