"""Bundled gates: a small stand-in for them, and the real one."""

import json
import shutil
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import goen
from goen.cli.main import main
from goen.data import load_set
from goen.data.sets.embedded import noise
from goen.errors import ArtifactError
from goen.gate import DEFAULT_GATE, Gate, bundled_folder, bundled_gates, gate_folder
from goen.models import NetworkConfig, ResNet18
from goen.models.flip_averaging import FlipAveraged
from goen.studies.published import read_published
from tests.own_model import digits


@cache
def stand_in() -> Gate:
    """A gate for goen's own network, never trained, that needs no code from outside."""
    torch.manual_seed(0)
    network = ResNet18(NetworkConfig(num_classes=7, width=2)).eval()
    train, held_out = digits().train.take(range(150)), digits().validation.take(range(120))
    return Gate.fit(network, train, held_out, layers=("layer2", "layer4"))


def bundle(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Put the stand-in where bundled gates lie, as the best of them."""
    patch.setattr("goen.gate.bundled._FOLDER", folder)
    patch.setattr("goen.gate.bundled._BEST", {DEFAULT_GATE: "cifar10-w16"})
    stand_in().save(folder / "cifar10-w16")
    return folder / "cifar10-w16"


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return bundle(tmp_path / "gates", monkeypatch)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = digits().test.read([0])[0].transpose(1, 2, 0)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def test_the_folder_of_bundled_gates_is_inside_the_package() -> None:
    inside = Path(goen.__file__).parent / "gate" / "bundled"
    assert bundled_folder("cifar10-w16") == inside / "cifar10-w16"
    assert bundled_folder(DEFAULT_GATE) == inside / "cifar10-ensemble"


def test_a_bundled_gate_is_named_by_its_folder(bundled: Path) -> None:
    (bundled.parent / "another").mkdir()
    shutil.copy(bundled / "manifest.json", bundled.parent / "another")
    (bundled.parent / "unfinished").mkdir()
    (bundled.parent / "README.md").write_text("no gate")
    assert bundled_gates() == ("another", "cifar10", "cifar10-w16")
    assert bundled_folder("cifar10-w16") == bundled_folder("cifar10") == bundled
    for name in ("unfinished", "README.md", "", ".", "..", "../gates/cifar10-w16"):
        assert bundled_folder(name) is None


def test_no_gate_is_bundled_where_there_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.gate.bundled._FOLDER", tmp_path / "none")
    assert bundled_gates() == ()
    assert bundled_folder("cifar10-w16") is bundled_folder("cifar10") is None
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtifactError, match=r"cifar10-w16 is not a folder") as refusal:
        goen.load("cifar10-w16")
    assert "bundled" not in str(refusal.value)


@pytest.mark.usefixtures("bundled")
def test_a_name_loads_the_gate_without_a_model() -> None:
    images = digits().test.read(range(20))
    found, expected = goen.load("cifar10-w16").predict(images), stand_in().predict(images)
    assert np.array_equal(found.score, expected.score)
    assert np.array_equal(found.is_ood, expected.is_ood)


def test_a_folder_of_the_same_name_comes_before_a_bundled_gate(bundled: Path) -> None:
    assert gate_folder("cifar10-w16") == bundled
    Path("cifar10-w16").write_text("no folder")
    assert gate_folder("cifar10-w16") == bundled
    Path("cifar10-w16").unlink()
    stand_in().with_false_alarm_rate(0.25).save("cifar10-w16")
    here = Path("cifar10-w16")
    for path in ("cifar10-w16", "./cifar10-w16", here, str(here.resolve())):
        assert goen.load(path).false_alarm_rate == 0.25
    assert goen.load("cifar10").false_alarm_rate == 0.05  # the other name of the bundled gate


@pytest.mark.usefixtures("bundled")
def test_a_path_is_never_a_name() -> None:
    with pytest.raises(ArtifactError, match="cifar10-w16 is not a folder") as refusal:
        goen.load(Path("cifar10-w16"))
    assert "bundled" not in str(refusal.value)
    assert gate_folder(Path("cifar10-w16")) == Path("cifar10-w16")


@pytest.mark.usefixtures("bundled")
def test_an_unknown_name_lists_the_bundled_gates() -> None:
    expected = r"cifar10-w61 is not a folder.*: cifar10, cifar10-w16\. Did you mean 'cifar10-w16'\?"
    with pytest.raises(ArtifactError, match=expected):
        goen.load("cifar10-w61")


@pytest.mark.usefixtures("bundled")
def test_goen_score_uses_the_bundled_gate(photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(photo)]) == 0
    by_default = capsys.readouterr().out
    row = json.loads(by_default)
    assert row["label"] in "0123456"
    assert np.isclose(row["score"], stand_in().predict(digits().test.read([0])).score[0])
    assert main(["score", str(photo), "--gate", "cifar10-w16"]) == 0
    assert capsys.readouterr().out == by_default
    assert main(["score", str(photo), "--gate", "nowhere"]) == 2
    assert "name a bundled gate: cifar10, cifar10-w16" in capsys.readouterr().err


@pytest.mark.usefixtures("bundled")
def test_goen_export_takes_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(gate: Gate, out: Path, *_: object, **__: object) -> None:
        out.write_text(repr(gate))

    monkeypatch.setattr(Gate, "export", written)
    assert main(["export", "cifar10-w16", "--out", str(tmp_path / "gate.onnx")]) == 0
    assert (tmp_path / "gate.onnx").read_text() == repr(stand_in())


# The bundled gates themselves

GATES = {"cifar10-ensemble": 16_000_000, "cifar10-w16": 8_000_000}
SETS = {"svhn", "cifar100", "noise", "tiny-imagenet", "mnist", "textures", "places"}
every_gate = pytest.mark.parametrize("name", GATES)


@cache
def bundled_gate(name: str) -> Gate:
    return goen.load(name)


def published_folder(name: str) -> Path:
    folder = bundled_folder(name)
    assert folder is not None
    return folder


def test_there_are_two_and_the_name_of_the_data_is_that_of_the_best() -> None:
    assert bundled_gates() == ("cifar10", *GATES)
    images = load_set("digits").read(range(5))
    scores = [bundled_gate(name).predict(images).score for name in (DEFAULT_GATE, *GATES)]
    assert np.array_equal(scores[0], scores[1])
    assert not np.array_equal(scores[0], scores[2])


@every_gate
def test_it_is_there_with_its_card_and_its_table_and_small(name: str) -> None:
    files = {file.name: file.stat().st_size for file in published_folder(name).iterdir()}
    saved = {".goen", "manifest.json", "tensors.safetensors"}
    assert set(files) == saved | {"published.json", "CARD.md"}
    assert sum(files.values()) <= GATES[name]


@every_gate
def test_no_ood_image_made_it(name: str) -> None:
    cifar10 = bundled_gate(name)
    splits = cifar10.metadata["splits"]
    assert {role: split["images"] for role, split in splits.items()} == {
        "train": 45_000,
        "calibration": 3_000,
        "held-out": 2_000,
    }
    assert all(split["name"].startswith("cifar10/train") for split in splits.values())
    assert isinstance(cifar10.network, FlipAveraged)
    assert not cifar10.detector.has_probability
    assert cifar10.false_alarm_rate == 0.05
    assert len(cifar10.held_out.scores) == 2_000


@every_gate
def test_what_was_published_has_every_set(name: str) -> None:
    rows = {(row.dataset, row.metric): row.value for row in read_published(published_folder(name))}
    assert {name for name, metric in rows if metric == "auroc"} >= SETS
    assert rows["test", "flagged"] < 0.06
    assert rows["noise", "auroc"] > 0.99


@every_gate
def test_ood_images_that_need_no_download_are_flagged(name: str) -> None:
    cifar10 = bundled_gate(name)
    some = load_set("digits").read(range(0, 1700, 50))
    assert cifar10.predict(some).is_ood.mean() > 0.8
    assert cifar10.predict(noise(40, seed=3).read()).is_ood.all()
    flat = np.full((1, 3, 32, 32), 128, np.uint8)
    assert np.isfinite(cifar10.predict(flat).score).all()


def test_a_picture_is_scored_with_no_more_than_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "photo.jpg"
    picture.write_bytes((resources.files("sklearn.datasets.images") / "china.jpg").read_bytes())
    assert main(["score", str(picture)]) == 0
    row = json.loads(capsys.readouterr().out)
    gate = bundled_gate(DEFAULT_GATE)
    assert row["label"] in gate.classes
    assert 0 < row["p_value"] <= 1
    assert {f"p_{cue}" for cue in gate.detector.cue_names} <= set(row)


def test_a_bundled_gate_is_the_same_where_the_default_type_is_float64() -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    expected = goen.load("cifar10-w16").predict(images).score
    torch.set_default_dtype(torch.float64)
    try:
        assert np.array_equal(goen.load("cifar10-w16").predict(images).score, expected)
    finally:
        torch.set_default_dtype(torch.float32)
