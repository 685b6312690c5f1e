import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import goen
from goen.errors import ArtifactError
from goen.gate import Gate
from goen.models.tapping.preprocess import Preprocess

from ..own_model import LAYERS, DigitNet, digits, ood, trained
from .test_gate import make_gate


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
    assert {file.suffix for file in folder.iterdir()} == {".json", ".safetensors"}


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
        (("scorer", "kind"), "goen-x"),
        (("scorer", "layers"), ["late", "early"]),
        (("scorer", "ood"), ["a", "b", "c"]),
        (("classes",), ["only one"]),
        (("image_size",), [32]),
        (("pictures",), "bilinear"),
        (("pictures", "decode"), "grey"),
        (("pictures", "resize"), 3),
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
    assert manifest["pictures"] == {"decode": "rgb-8-bit", "resize": "bilinear-antialiased"}
    manifest["pictures"]["resize"] = "lanczos"
    file.write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=r"resize: 'lanczos', expected 'bilinear-antialiased'"):
        goen.load(tmp_path / "gate", model=DigitNet())
    del manifest["pictures"]  # as in gates of earlier versions, which were read in the same way
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
    assert loaded.facts == {"why": "a test"}
    assert loaded.classes == gate.classes
    manifest = json.loads((tmp_path / "gate" / "manifest.json").read_text())
    assert manifest["threshold"] == gate.threshold
    assert manifest["guarantee"]["held_out_images"] == 200
    names = {p.suffix for p in (tmp_path / "gate").iterdir()}
    assert names == {".safetensors", ".json"}


def test_a_gate_that_does_not_fit_its_manifest_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "gate"
    make_gate().save(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    for path, value in [
        (("network", "width"), 3),
        (("network", "colour"), "red"),
        (("scorer", "head"), None),
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
