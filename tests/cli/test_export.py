"""``goen export`` as a person would type it; a fitted gate is exported in test_fit.py."""

from pathlib import Path

import pytest
import torch

from goen.cli.main import main
from tests.own_model import trained


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("w.onnx", "w.onnx exists. Replace it with overwrite=True (--overwrite)"),
        ("w.pt", "--out is an ONNX file, such as gate.onnx; got"),
    ],
)
def test_export_replaces_no_weights_and_reports_it_before_anything_is_traced(
    tmp_path: Path,
    name: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("goen.cli.options.model.load", lambda *_: pytest.fail("it has begun"))
    weights = tmp_path / name
    torch.save(trained().state_dict(), weights)
    before = weights.read_bytes()
    assert main(["export", "cifar10-w16", "--out", str(weights)]) == 2
    assert message in capsys.readouterr().err
    assert weights.read_bytes() == before


def test_a_file_to_write_and_images_to_compare_on_are_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["export", "cifar10-w16"])
    assert "--out PATH" in capsys.readouterr().err
    out, empty = str(tmp_path / "gate.onnx"), tmp_path / "empty"
    empty.mkdir()
    assert main(["export", "cifar10-w16", "--out", out, "--images", str(empty)]) == 2
    assert "There are no images in" in capsys.readouterr().err
    assert not Path(out).exists()


@pytest.mark.parametrize("fixed", [False, True])
def test_a_file_for_one_size_is_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fixed: bool
) -> None:
    called = []

    def write(_: object, path: Path, *__: object, any_size: bool, **___: object) -> None:
        called.append(any_size)
        path.touch()

    monkeypatch.setattr("goen.gate.Gate.export", write)
    words = ["export", "cifar10-w16", "--out", str(tmp_path / "g.onnx")]
    assert main([*words, *(["--fixed-size"] if fixed else [])]) == 0
    assert called == [not fixed]
