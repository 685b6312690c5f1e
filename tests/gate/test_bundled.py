"""Gates that come with the package, here a small stand-in for them."""

import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import goen
from goen.cli.main import main
from goen.errors import ArtifactError
from goen.gate import DEFAULT_GATE, Gate, gate_folder, shipped_folder
from goen.gate.bundled import GATES, shipped
from goen.models import NetworkConfig, ResNet18

from ..own_model import digits


@cache
def stand_in() -> Gate:
    """A gate for goen's own network, never trained, that needs no code from outside."""
    torch.manual_seed(0)
    network = ResNet18(NetworkConfig(num_classes=7, width=2)).eval()
    train, held_out = digits().train.take(range(150)), digits().validation.take(range(120))
    return Gate.fit(network, train, held_out, layers=("layer2", "layer4"))


def ship(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Put the stand-in where shipped gates lie, under the name of the real one."""
    patch.setattr("goen.gate.bundled.GATES", folder)
    stand_in().save(folder / DEFAULT_GATE)
    return folder / DEFAULT_GATE


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return ship(tmp_path / "gates", monkeypatch)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = digits().test.read([0])[0].transpose(1, 2, 0)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def test_the_folder_of_shipped_gates_is_inside_the_package() -> None:
    assert Path(goen.__file__).parent / "gates" == GATES


def test_a_shipped_gate_is_named_by_its_folder(box: Path) -> None:
    (box.parent / "another").mkdir()
    shutil.copy(box / "manifest.json", box.parent / "another")
    (box.parent / "unfinished").mkdir()
    (box.parent / "README.md").write_text("no gate")
    assert shipped() == ("another", "cifar10-w16")
    assert shipped_folder("cifar10-w16") == box
    for name in ("unfinished", "README.md", "", ".", "..", "../gates/cifar10-w16"):
        assert shipped_folder(name) is None


def test_nothing_is_shipped_where_there_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.gate.bundled.GATES", tmp_path / "none")
    assert shipped() == ()
    assert shipped_folder("cifar10-w16") is None
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtifactError, match=r"cifar10-w16 is not a folder") as refusal:
        goen.load("cifar10-w16")
    assert "comes with goen" not in str(refusal.value)


@pytest.mark.usefixtures("box")
def test_a_name_loads_the_gate_without_a_model() -> None:
    images = digits().test.read(range(20))
    found, expected = goen.load("cifar10-w16").predict(images), stand_in().predict(images)
    assert np.array_equal(found.score, expected.score)
    assert np.array_equal(found.is_ood, expected.is_ood)


def test_what_exists_at_the_path_comes_before_the_name(box: Path) -> None:
    other = stand_in().with_false_alarm_rate(0.25)
    other.save("cifar10-w16")
    assert goen.load("cifar10-w16").false_alarm_rate == 0.25
    assert gate_folder("cifar10-w16") == Path("cifar10-w16")
    shutil.rmtree("cifar10-w16")
    Path("cifar10-w16").mkdir()
    with pytest.raises(ArtifactError, match="without manifest") as refusal:
        goen.load("cifar10-w16")
    assert "comes with goen" not in str(refusal.value)
    Path("cifar10-w16").rmdir()
    assert goen.load("cifar10-w16").false_alarm_rate == 0.05
    assert gate_folder("cifar10-w16") == box


@pytest.mark.usefixtures("box")
def test_a_path_is_never_a_name() -> None:
    with pytest.raises(ArtifactError, match="cifar10-w16 is not a folder") as refusal:
        goen.load(Path("cifar10-w16"))
    assert "comes with goen" not in str(refusal.value)
    assert gate_folder(Path("cifar10-w16")) == Path("cifar10-w16")


@pytest.mark.usefixtures("box")
def test_an_unknown_name_is_told_the_known_ones() -> None:
    expected = r'cifar10-w61 is not a folder.*comes with goen: goen\.load\("cifar10-w16"\)\.'
    with pytest.raises(ArtifactError, match=expected):
        goen.load("cifar10-w61")


@pytest.mark.usefixtures("box")
def test_goen_score_asks_the_gate_in_the_box(
    photo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["score", str(photo)]) == 0
    by_default = capsys.readouterr().out
    row = json.loads(by_default)
    assert row["label"] in "0123456"
    assert np.isclose(row["score"], stand_in().predict(digits().test.read([0])).score[0])
    assert main(["score", str(photo), "--gate", "cifar10-w16"]) == 0
    assert capsys.readouterr().out == by_default
    assert main(["score", str(photo), "--gate", "nowhere"]) == 2
    assert 'goen.load("cifar10-w16")' in capsys.readouterr().err


@pytest.mark.usefixtures("box")
def test_goen_export_takes_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(gate: Gate, out: Path, *_: object, **__: object) -> None:
        out.write_text(repr(gate))

    monkeypatch.setattr("goen.cli.export.to_onnx", written)
    assert main(["export", "cifar10-w16", "--out", str(tmp_path / "gate.onnx")]) == 0
    assert (tmp_path / "gate.onnx").read_text() == repr(stand_in())
