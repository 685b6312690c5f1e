"""``goen report`` as a person would type it."""

from pathlib import Path

import pytest

from goen.cli.main import main
from tests.gate.test_gate import make_gate
from tests.report.by_hand import bench


def test_it_prints_where_everything_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = bench(tmp_path / "bench")
    assert main(["report", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f"report:  {folder / 'report.html'}"
    assert (folder / "report.html").is_file()
    assert (folder / "figures" / "roc-noise.pdf").is_file()


def test_a_folder_without_a_run_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "results.jsonl is not there. Has the run finished?" in capsys.readouterr().err


def test_a_gate_has_its_page_already(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_gate().save(tmp_path / "gate")
    assert main(["report", str(tmp_path / "gate")]) == 2
    assert "is a gate, and goen report is for runs" in capsys.readouterr().err


def test_a_study_beside_it_that_is_none_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = bench(tmp_path / "bench")
    assert main(["report", str(folder), "--with", str(tmp_path)]) == 2
    assert "Has the run finished?" in capsys.readouterr().err
