"""``goen score`` as a person would type it."""

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import goen
from goen.cli.main import main
from goen.data import load_set
from goen.data.pictures import read_picture

from .test_run import finished

__all__ = ["finished"]  # a fixture


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    (folder / "deep").mkdir(parents=True)
    digits = load_set("digits").read(range(3))
    for i, pixels in enumerate(digits):
        Image.fromarray(pixels.transpose(1, 2, 0)).save(folder / f"{i}.png")
    Image.fromarray(digits[0].transpose(1, 2, 0)).convert("L").resize((90, 70)).save(
        folder / "deep" / "3.jpg"
    )
    (folder / "4.png").write_bytes(b"\x89PNG\r\n\x1a\n, and then the disk was full")
    (folder / "notes.txt").write_text("no picture")
    return folder


def test_every_file_gets_a_row_and_the_code_says_whether_all_were_read(
    finished: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["score", str(pictures), "--gate", str(finished / "gate")]) == 1
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert [Path(r["path"]).name for r in rows] == ["0.png", "1.png", "2.png", "4.png", "3.jpg"]
    broken = rows[3]
    assert "4.png" in broken["error"]
    assert broken["label"] is broken["is_ood"] is None
    for row in rows[:3]:
        assert row["error"] is None
        assert row["label"] in "0123456"
        assert row["is_ood"] == (row["p_value"] <= 0.05)
    assert "4 scored" in err
    assert "1 unreadable" in err
    (pictures / "4.png").unlink()
    assert main(["score", str(pictures), "--gate", str(finished)]) == 0


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_the_three_formats_hold_the_same(
    finished: Path, pictures: Path, tmp_path: Path, ending: str
) -> None:
    out = tmp_path / f"scores{ending}"
    assert main(["score", str(pictures), "--gate", str(finished), "--out", str(out)]) == 1
    if ending == ".jsonl":
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    elif ending == ".csv":
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        rows = pq.read_table(out).to_pylist()
    assert len(rows) == 5
    assert list(rows[0]) == [
        "path", "label", "confidence", "score", "p_value", "probability", "is_ood",
        "cue_log_distance", "cue_similarity", "cue_entropy",
        "p_log_distance", "p_similarity", "p_entropy", "error",
    ]  # fmt: skip
    scores = [float(r["score"]) for r in rows if not r["error"]]
    batch = np.stack([read_picture(Path(r["path"]), (32, 32)) for r in rows[:3]])
    direct = goen.load(finished).predict(batch).score
    assert np.allclose(scores[:3], direct, atol=1e-5)


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_scores_replace_scores_and_nothing_else(
    finished: Path,
    pictures: Path,
    tmp_path: Path,
    ending: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / f"scores{ending}"
    command = ["score", str(pictures), "--gate", str(finished), "--out", str(out)]
    assert main(command) == main(command) == 1
    with monkeypatch.context() as patch:
        patch.setattr("goen.cli.score.score_files", lambda *_: pytest.fail("it has begun"))
        earlier = out.read_bytes()
        assert main([command[0], str(out), *command[1:]]) == 2
        assert "is one of the files to score" in capsys.readouterr().err
        assert out.read_bytes() == earlier
        out.write_text("name,mark\nAda,1\n")
        assert main(command) == 2
        assert "a file of 16 bytes, not" in capsys.readouterr().err
    assert out.read_text() == "name,mark\nAda,1\n"


def test_another_rate_moves_only_the_decision(
    finished: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = []
    for rate in ("0.03", "0.9"):
        main(["score", str(pictures), "--gate", str(finished), "--false-alarm-rate", rate])
        rows.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    for strict, loose in zip(*rows, strict=True):
        assert strict["p_value"] == loose["p_value"]
        if not strict["error"]:
            assert loose["is_ood"] == (loose["p_value"] <= 0.9)
            assert strict["is_ood"] == (strict["p_value"] <= 0.03)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "scores.xls"], "the suffix selects the format"),
        (["--false-alarm-rate", "0.0001"], "needs at least 9999 held-out scores, got 48"),
        (["--false-alarm-rate", "2"], "strictly between 0 and 1"),
        (["--gate", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_mistakes_get_a_sentence_and_code_two(
    finished: Path,
    pictures: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["score", str(pictures), "--gate", str(finished), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_path_that_does_not_exist_is_a_row(
    pictures: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = str(next(iter(sorted(pictures.glob("*.png")))))
    assert main(["score", "nowhere.png", good, "--gate", str(finished)]) == 1
    captured = capsys.readouterr()
    missing, found = map(json.loads, captured.out.splitlines())
    assert missing["error"] == "nowhere.png does not exist."
    assert found["error"] is None
    assert "1 scored" in captured.err


def test_nothing_to_score_is_reported(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["score", str(tmp_path / "empty"), "--gate", str(finished)]) == 2
    assert "no pictures" in capsys.readouterr().err
    assert main(["score", str(tmp_path / "empty"), "--gate", str(tmp_path)]) == 2
    assert "no saved gate is there" in capsys.readouterr().err


def test_odd_names_links_and_loops_lose_nothing(
    finished: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pictures / "4.png").unlink()
    os.link(pictures / "0.png", os.fsencode(pictures) + b"/bad\xff.png")
    (pictures / "linked").symlink_to(pictures / "deep", target_is_directory=True)
    (pictures / "deep" / "loop").symlink_to(pictures, target_is_directory=True)
    out = pictures.parent / "scores.csv"
    assert main(["score", str(pictures), "--gate", str(finished), "--out", str(out)]) == 0
    with out.open(newline="") as file:
        names = [Path(row["path"]).name for row in csv.DictReader(file)]
    assert sorted(names) == ["0.png", "1.png", "2.png", "3.jpg", "bad\\xff.png"]
    assert "5 scored" in capsys.readouterr().err


def test_a_name_too_long_for_the_system_is_one_sentence(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["score", "x" * 5000 + ".png", "--gate", str(finished)]) == 2
    assert "too long" in capsys.readouterr().err


HOSTILE = ["=1+1.png", "+a.png", "-b.png", "@c.png", "'d.png", "e\x1b]0;x\x07.png", "f\x9b2J.png"]


def test_hostile_names_are_harmless_and_come_back(
    pictures: Path,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = next(iter(sorted(pictures.glob("*.png"))))
    monkeypatch.chdir(tmp_path)
    for name in HOSTILE:
        shutil.copy(good, name)
    # "./" keeps a name that begins with a dash from being an option; it is not in the rows.
    names = [name for name in sorted(HOSTILE) if not name.startswith("-")]
    assert main(["score", *names, "--gate", str(finished)]) == 0
    out = capsys.readouterr().out
    assert not set(out) & {"\x1b", "\x07", "\x9b"}
    assert [json.loads(line)["path"] for line in out.splitlines()] == names
    assert main(["score", *names, "--gate", str(finished), "--out", "scores.csv"]) == 0
    with Path("scores.csv").open(newline="", encoding="utf-8") as file:
        cells = [row["path"] for row in csv.DictReader(file)]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]
    assert [cell.removeprefix("'") for cell in cells] == names
