"""``goen export`` as a person would type it; a fitted gate is exported in test_fit.py."""

from pathlib import Path

import pytest
import torch

from goen.cli.main import main
from tests.own_model import trained


@pytest.mark.parametrize("option", ["--out", "--program"])
def test_export_replaces_no_weights_and_reports_it_before_anything_is_traced(
    tmp_path: Path,
    option: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("goen.cli.export.open_gate", lambda *_, **__: pytest.fail("it has begun"))
    weights = tmp_path / "w.pt"
    torch.save(trained().state_dict(), weights)
    before = weights.read_bytes()
    assert main(["export", "cifar10-w16", option, str(weights)]) == 2
    assert "w.pt exists. Replace it with overwrite=True (--overwrite)" in capsys.readouterr().err
    assert weights.read_bytes() == before
    assert main(["export", "cifar10-w16", "--out", "g.onnx", "--program", "./g.onnx"]) == 2
    assert "must be different files" in capsys.readouterr().err
    for exchanged in ("--out", "gate.pt2"), ("--program", "gate.onnx"):
        assert main(["export", "cifar10-w16", *exchanged]) == 2
        assert f"got {' '.join(exchanged)}." in capsys.readouterr().err


def test_a_file_to_write_and_pictures_to_compare_on_are_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "cifar10-w16"]) == 2
    assert "Name a file to write: --out gate.onnx" in capsys.readouterr().err
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

    for name in ("to_onnx", "to_program"):
        monkeypatch.setattr(f"goen.cli.export.{name}", write)
    files = ["--out", str(tmp_path / "g.onnx"), "--program", str(tmp_path / "g.pt2")]
    assert main(["export", "cifar10-w16", *files, *(["--fixed-size"] if fixed else [])]) == 0
    assert called == [not fixed] * 2
