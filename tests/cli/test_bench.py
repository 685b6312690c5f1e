"""``goen bench`` as a person would type it."""

import json
from pathlib import Path

import pytest

from goen.cli.main import main
from goen.studies import PRESETS
from tests.tiny import FAST, tiny_protocol


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "fast", FAST)  # type: ignore[arg-type]
    monkeypatch.setattr("goen.cli.options.study.protocol", lambda *_, **__: tiny_protocol())
    monkeypatch.setenv("COLUMNS", "200")


def test_tables_on_the_terminal_and_in_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs" / "b"
    command = ["bench", "--preset", "fast", "--out", str(out), "--methods", "max_softmax", "knn"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "AUROC: digits, budget full, seed 42" in printed
    assert "FPR95, ID positive" in printed
    assert (out / "tables" / "auroc.tex").is_file()
    assert (tmp_path / "runs" / "stages").is_dir()  # beside the run: other studies find it
    assert main([*command, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["method"] for row in rows} == {"max_softmax", "knn"}
    text = (out / "results.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in text] == rows


def test_ood_images_that_choose_parameters_have_one_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "b"
    command = ["bench", "--preset", "fast", "--out", str(out), "--methods", "energy", "react"]
    assert main([*command, "--tune-on", "noise", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["method"] for row in rows} == {"energy", "react", "react_tuned"}
    assert main([*command, "--tune-on", "noise", "--calibration-ood", "noise"]) == 2
    assert "Give --tune-on or --calibration-ood" in capsys.readouterr().err
    openood = ["--openood", str(tmp_path), "--benchmark", "cifar10", "--weights", "best.ckpt"]
    assert main(["bench", *openood, "--tune-on", "noise"]) == 2
    assert "--openood has its own images for tuning" in capsys.readouterr().err


def test_a_mistyped_method_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--out", str(tmp_path / "b"), "--methods", "max_sofmax"]) == 2
    assert "Did you mean 'max_softmax'" in capsys.readouterr().err
