"""``goen report`` as a person would type it."""

import shutil
from pathlib import Path

import pytest

from goen.cli.main import main
from tests.gate.test_gate import make_gate
from tests.report.by_hand import bench

KEPT = Path(__file__).parents[2] / "results" / "cifar10"


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


def test_the_papers_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "ablate"
    folder.mkdir()
    for kept, name in (("ablate-42.jsonl", "results.jsonl"), ("ablate-42.json", "run.json")):
        shutil.copy(KEPT / kept, folder / name)
    baselines = str(KEPT / "baselines-42.jsonl")
    assert main(["report", "--paper", str(folder), "--with", baselines]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("**Table ") == 3
    assert "| NoCenterLoss | 0.9311 | 0.9372 | 0.9079 | 1.0000 | 0.9483 |" in captured.out
    assert "| NoCenterLoss | 0.8750 | 0.8676† |" in captured.out
    assert "*goen, preset short, budget full, seeds 42*" in captured.out
    assert captured.out.endswith((folder / "paper" / "paper-table-3.md").read_text())
    assert (folder / "paper" / "paper-table-1.tex").is_file()
    assert f"page:   {folder / 'paper' / 'paper.html'}" in captured.err
    assert main(["report", "--paper", str(folder)]) == 0  # again, in place of the first
    assert main(["report", "--paper", baselines]) == 0  # a kept file: nothing is written
    assert sorted(p.name for p in folder.iterdir()) == ["paper", "results.jsonl", "run.json"]
    assert main(["report", "--paper", str(bench(tmp_path / "bench"))]) == 2
    assert "The paper's tables are of CIFAR-10" in capsys.readouterr().err
    assert main(["report", "--paper", baselines, "--out", str(tmp_path / "here")]) == 0
    assert (tmp_path / "here" / "paper.html").is_file()
    capsys.readouterr()
    assert main(["report", str(tmp_path / "bench"), "--out", str(tmp_path / "here")]) == 2
    assert "is the folder of the tables of --paper" in capsys.readouterr().err


def test_the_methods_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = bench(tmp_path / "bench")
    fast = str(KEPT / "fast-42.jsonl")
    assert main(["report", "--board", str(folder), "--with", fast]) == 0
    page = folder / "board" / "board.html"
    assert capsys.readouterr().out == f"page: {page}\n"
    assert "network of preset" not in page.read_text(encoding="utf-8").partition("<table")[0]
    assert (folder / "board" / "board-cifar10.csv").is_file()
    assert (folder / "board" / "board-digits.csv").is_file()
    assert main(["report", "--board", fast, "--out", str(tmp_path / "here")]) == 0
    assert (tmp_path / "here" / "board.html").is_file()


def test_the_current_folder_has_its_name_on_the_board(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bench(tmp_path / "bench")
    monkeypatch.chdir(folder)
    assert main(["report", "--board", ".", "--with", str(folder)]) == 2
    assert "Two studies are called bench" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--board", str(KEPT / "fast-42.jsonl")], "needs a folder: add --out FOLDER"),
        (["--board", str(KEPT / "ablate-42.jsonl"), "--out", "x"], "is of goen ablate; --board"),
        (["--board", "--paper", "x"], "ask for one of them"),
        (
            ["--board", *[str(KEPT / "fast-42.jsonl")], "--with", str(KEPT / "fast-42.jsonl"),
             "--out", "x"],
            "Two studies are called fast-42",
        ),
    ],
)  # fmt: skip
def test_a_board_that_cannot_be_made(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *arguments]) == 2
    assert message in capsys.readouterr().err
