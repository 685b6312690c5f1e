"""``goen score`` as a person would type it."""

import csv
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import goen
from goen.cli.main import main
from goen.cli.score import _about
from goen.data import load_set
from goen.data.images.decoding import read_image
from goen.scoring.score_folder import score_shard_files
from tests.image_sources import encoded, write_folder, write_parquet, write_tar
from tests.report.scored import galleries

pytestmark = pytest.mark.xdist_group("finished run")


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


def test_the_summary_names_the_engine_and_both_engines_decide_alike(
    finished: Path,
    pictures: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ["score", str(pictures), "--gate", str(finished)]
    main(command)
    out, err = capsys.readouterr()
    assert "engine: torch" in err
    rows = [json.loads(line) for line in out.splitlines()]
    monkeypatch.setattr("goen.scoring.pipeline.FEWEST_FOR_ONNXRUNTIME", 5)  # there are five
    for asked in ("onnxruntime", "auto"):
        assert main([*command, "--engine", asked]) == 1
        out, err = capsys.readouterr()
        assert "engine: onnxruntime" in err
        found = [json.loads(line) for line in out.splitlines()]
        for row, other in zip(rows, found, strict=True):
            for name in ("path", "label", "is_ood", "error"):
                assert row[name] == other[name]
            if row["error"] is None:
                assert row["score"] == pytest.approx(other["score"], rel=1e-4)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main([*command, "--engine", "onnxruntime"]) == 2
    assert "pip install 'goen[onnx]'" in capsys.readouterr().err
    assert main([*command, "--engine", "auto"]) == 1
    err = capsys.readouterr().err
    assert "The network runs in torch. The engine onnxruntime needs onnxruntime" in err
    assert "engine: torch" in err


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
        "p_log_distance", "p_similarity", "p_entropy",
        "image_brightness", "image_contrast", "image_sharpness", "image_entropy", "image_colour",
        "error",
    ]  # fmt: skip
    scores = [float(r["score"]) for r in rows if not r["error"]]
    batch = np.stack([read_image(Path(r["path"]), (32, 32)) for r in rows[:3]])
    direct = goen.load(finished).predict(batch).score
    assert np.allclose(scores[:3], direct, atol=1e-5)


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_a_file_is_replaced_if_asked_and_never_scored(
    finished: Path,
    pictures: Path,
    tmp_path: Path,
    ending: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / f"scores{ending}"
    command = ["score", str(pictures), "--gate", str(finished), "--out", str(out)]
    assert main(command) == main([*command, "--overwrite"]) == 1
    capsys.readouterr()
    earlier = out.read_bytes()
    assert main(command) == 2
    assert "exists. Replace it with" in capsys.readouterr().err
    assert main([command[0], str(out), *command[1:], "--overwrite"]) == 2
    assert "is one of the files to score" in capsys.readouterr().err
    assert out.read_bytes() == earlier


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
        (["--false-alarm-rate", "0.0001"], "needs 9,999 held-out images that set the threshold"),
        (["--false-alarm-rate", "2"], "strictly between 0 and 1"),
        (["--gate", "nowhere"], "nowhere is not a folder"),
        (["--format", "csv", "--out", "a.jsonl"], "a.jsonl would hold csv, but its suffix stands"),
        (["--format", "table", "--out", "a.csv"], "A table goes to standard output, not to a.csv"),
        (["--sort", "p_valeu"], "Unknown column 'p_valeu'. Did you mean 'p_value'?"),
        (["--batch-size", "0"], "at least one image, got a batch size of 0"),
        (["--threads", "0"], "threads must be an integer, at least 1"),
        (["--workers", "0"], "1 worker or more"),
        (["--cluster", "auto"], "--cluster goes with --workers N"),
        (["--shard-size", "100"], "a multiple of 128"),
        (["--out", "s/", "--sort", "score"], "--sort is for a table or one file"),
        (["--out", "s/", "--format", "table"], "A table goes to standard output"),
        (["--device", "gpu"], "There is no device 'gpu' on this machine. Available: cpu"),
        (["--copy-flagged", "."], "which is scored: copies there would be scored as well"),
    ],
)
def test_mistakes_get_a_sentence_and_code_two(
    finished: Path,
    pictures: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(pictures)
    before = sorted(pictures.iterdir())
    assert main(["score", str(pictures), "--gate", str(finished), *arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert (out, sorted(pictures.iterdir())) == ("", before)


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


def test_a_misspelt_folder_is_an_error_before_anything_is_written(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "typo.csv"
    for more in ([], ["--workers", "1"]):
        assert main(["score", "pictues", "--gate", "nowhere", "--out", str(out), *more]) == 2
        assert "pictues does not exist." in capsys.readouterr().err
    assert not out.exists()


def test_the_first_reason_is_said_where_rows_go_to_a_file(
    pictures: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scores.csv"
    (pictures / "0-broken.png").write_bytes(b"no picture")
    assert main(["score", str(pictures), "--gate", str(finished), "--out", str(out)]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "the first that could not be scored: " in said
    assert "0-broken.png is not an image that goen reads" in said


def test_nothing_to_score_is_reported(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["score", str(tmp_path / "empty"), "--gate", str(finished)]) == 2
    assert "no images" in capsys.readouterr().err
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


def test_a_name_too_long_for_the_system_is_one_row(
    pictures: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = str(next(iter(sorted(pictures.glob("*.png")))))
    assert main(["score", "x" * 5000 + ".png", good, "--gate", str(finished)]) == 1
    row, _ = capsys.readouterr().out.splitlines()
    assert "too long" in json.loads(row)["error"]


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


# -- for a person: a table --------------------------------------------------------------------


def look_like_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let standard output, as it is captured now, look like a terminal of 140 columns."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "140")


def test_a_terminal_gets_a_table_with_the_most_suspicious_first_and_a_summary(
    finished: Path,
    pictures: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    look_like_a_terminal(monkeypatch)
    monkeypatch.chdir(pictures.parent)
    command = ["score", "pictures", "--gate", str(finished), "--false-alarm-rate", "0.5"]
    assert main(command) == 1
    out, err = capsys.readouterr()
    head, _, *lines = re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()
    assert re.split(r"  +", head) == [
        "image", "class", "confidence", "p-value", "decision", "why",
    ]  # fmt: skip
    assert max(map(len, lines[:4])) <= 140
    main([*command, "--format", "jsonl"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    read = [row for row in rows if not row["error"]]
    read.sort(key=lambda row: (row["p_value"], -row["score"]))
    assert [line.split()[0] for line in lines[:4]] == [row["path"] for row in read]
    for line, row in zip(lines, read, strict=False):
        words = [row["path"], row["label"], f"{row['confidence']:.0%}", f"{row['p_value']:.2g}"]
        assert line.split()[:5] == [*words, "flagged" if row["is_ood"] else "passed"]
    assert lines[4].startswith("unreadable: pictures/4.png")
    flagged = sum(row["is_ood"] for row in read)
    text = " ".join(" ".join(lines[5:]).split())
    assert text.startswith(
        f"4 scored, {flagged} flagged at a false-alarm rate of 0.5, 1 unreadable; "
        "1 file skipped, not in a format that goen reads (1 .txt)"
    )
    assert "classifies 0, 1, 2, 3, 4, 5, 6. Of images of these it flags at most 50.0%" in text
    assert err == ""


def test_no_more_than_ten_classes_are_listed() -> None:
    gate = goen.load("cifar10-w16")
    assert "classifies airplane, automobile, bird" in _about("it", gate)
    assert "ship, truck. Of images of these it flags at most 5.0%" in _about("it", gate)
    more = replace(gate, classes=(*gate.classes, "boat"))
    assert "ship, truck, .... Of images" in _about("it", more)


def test_a_table_can_be_asked_for_and_is_then_not_broken(
    finished: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = pictures / "0.png"
    assert main(["score", str(good), "--gate", str(finished), "--format", "table"]) == 0
    head, _, line, *_ = capsys.readouterr().out.splitlines()
    assert head.startswith("image")
    assert line.startswith(f"{good}  ")


def test_rows_on_a_terminal_hold_no_control_characters_and_parquet_is_refused(
    finished: Path,
    pictures: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    look_like_a_terminal(monkeypatch)
    bars: list[bool] = []

    @contextmanager
    def shown(show: bool) -> Iterator[None]:
        bars.append(show)
        yield

    monkeypatch.setattr("goen.cli.score.shown", shown)
    odd = pictures / "a\x1b[2J.png"
    shutil.copy(pictures / "0.png", odd)
    for form in ("csv", "jsonl"):
        assert main(["score", str(odd), "--gate", str(finished), "--format", form]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "x1b[2J.png" in out
    assert main(["score", str(odd), "--gate", str(finished)]) == 0
    assert bars == [False, False, True]  # no bar stands between rows
    capsys.readouterr()
    assert main(["score", str(odd), "--gate", str(finished), "--format", "parquet"]) == 2
    assert "give --out scores.parquet" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_every_format_goes_to_standard_output_or_to_a_file_of_any_name(
    form: str,
    finished: Path,
    pictures: Path,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    command = ["score", str(pictures), "--gate", str(finished), "--format", form]
    assert main([*command, "--out", str(tmp_path / "scores")]) == 1
    assert capfdbinary.readouterr().out == b""
    assert main(command) == 1
    printed = capfdbinary.readouterr().out
    assert main([*command, "--out", "-"]) == 1
    assert capfdbinary.readouterr().out == printed
    assert not (Path("-")).exists()
    if form == "parquet":
        file = pq.read_table(tmp_path / "scores")
        assert pq.read_table(io.BytesIO(printed)).equals(file)
    else:
        assert (tmp_path / "scores").read_bytes() == printed


# -- what is scored, shown and copied ---------------------------------------------------------


@pytest.fixture
def score(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, list[str], str]]:
    """Run it; the code, the names of the files with a row, and the messages."""

    def run(*arguments: object, stdin: bytes = b"") -> tuple[int, list[str], str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(["score", *map(str, arguments), "--gate", str(finished)])
        out, err = capsys.readouterr()
        return code, [Path(json.loads(line)["path"]).name for line in out.splitlines()], err

    return run


def test_paths_come_from_standard_input(
    pictures: Path, score: Callable[..., tuple[int, list[str], str]]
) -> None:
    bad = os.fsencode(pictures) + b"/bad\xff\n.png"
    os.link(pictures / "1.png", bad)
    one, two = (os.fsencode(pictures / name) for name in ("0.png", "2.png"))
    assert score("-", stdin=one + b"\n" + two)[:2] == (0, ["0.png", "2.png"])
    assert score("-", stdin=one + b"\r\n\n")[:2] == (0, ["0.png"])
    assert score("-", stdin=bad + b"\0" + one + b"\0")[:2] == (0, ["bad\\xff\n.png", "0.png"])
    returned = os.fsencode(pictures) + b"/a\rb.png"
    os.link(pictures / "1.png", returned)
    assert score("-", stdin=returned + b"\n" + one)[:2] == (0, ["a\rb.png", "0.png"])
    given = (pictures / "1.png", "-", pictures / "deep")
    assert score(*given, stdin=two)[:2] == (0, ["1.png", "2.png", "3.jpg"])
    for arguments, stdin, message in (
        (("-", "-"), one, "Standard input can be read once"),
        (("-",), b"\n", "Standard input holds no paths"),
        (("-",), (pictures / "0.png").read_bytes(), "is an image itself"),
        (("-",), b"P6 99999 99999 255 ", "is an image itself"),  # of more pixels than are read
    ):
        code, rows, err = score(*arguments, stdin=stdin)
        assert (code, rows) == (2, [])
        assert message in err


def test_a_path_that_no_system_call_takes_costs_its_own_row_only(
    pictures: Path, tmp_path: Path, score: Callable[..., tuple[int, list[str], str]]
) -> None:
    one, long = os.fsencode(pictures / "0.png"), b"x" * 5000
    (tmp_path / "circle.png").symlink_to("circle.png")
    bad = long + b"\n" + os.fsencode(tmp_path / "circle.png") + b"\n"
    copies = ("--copy-flagged", tmp_path / "copies")
    assert score("-", *copies, stdin=bad + one)[:2] == (1, [long.decode(), "circle.png", "0.png"])
    # A picture would begin with this text.
    assert score("-", stdin=b"P6\n" + one)[:2] == (1, ["P6", "0.png"])


def test_rows_can_be_sorted_and_those_of_flagged_pictures_left(
    pictures: Path, score: Callable[..., tuple[int, list[str], str]], finished: Path
) -> None:
    files = [*sorted(pictures.glob("[0-2].png")), pictures / "deep" / "3.jpg"]
    found = goen.load(finished).predict(np.stack([read_image(f, (32, 32)) for f in files]))
    rate = float(np.median(found.p_value))
    by_p = [files[i].name for i in np.lexsort((-found.score, found.p_value))]
    flagged = [file.name for file, p in zip(files, found.p_value, strict=True) if p <= rate]
    assert 0 < len(flagged) < 4
    asked = ("--false-alarm-rate", rate)
    assert score(pictures, *asked, "--sort", "p_value")[1] == [*by_p, "4.png"]
    assert score(*files[::-1], "--sort", "path")[1] == sorted(file.name for file in files)
    assert score(*files[::-1], "--sort", "given")[1] == [file.name for file in files[::-1]]
    code, rows, err = score(pictures, *asked, "--flagged-only")
    assert (code, rows) == (1, flagged)
    assert f"4 scored, {len(flagged)} flagged" in err
    assert "1 unreadable" in err
    out = pictures.parent / "flagged.jsonl"
    assert score(files[0], "--false-alarm-rate", "0.03", "--flagged-only", "--out", out)[0] == 0
    assert out.read_text() == ""


def test_flagged_pictures_are_copied(
    pictures: Path, tmp_path: Path, score: Callable[..., tuple[int, list[str], str]]
) -> None:
    folder = tmp_path / "to look at"
    everything = ("--false-alarm-rate", "0.97")
    code, _, err = score(pictures, *everything, "--copy-flagged", folder, "--batch-size", "3")
    assert code == 1
    names = {path.name for path in folder.iterdir()} - {".goen"}
    assert f"{len(names)} flagged images copied to {folder}" in err
    assert names > {"3.jpg"}
    assert (folder / "3.jpg").read_bytes() == (pictures / "deep" / "3.jpg").read_bytes()
    code, _, err = score(pictures / "0.png", *everything, "--copy-flagged", folder)
    assert code == 0
    assert f"\n1 flagged image copied to {folder}" in err
    assert {path.name for path in folder.iterdir()} == {"0.png", ".goen"}
    code, rows, err = score(pictures, "--copy-flagged", pictures / "flagged")
    assert (code, rows) == (2, [])
    assert "which is scored" in err
    assert not (pictures / "flagged").exists()


def test_a_report_shows_the_pictures_and_leaves_the_rows_as_they_are(
    finished: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["score", str(pictures), "--gate", str(finished)]) == 1
    rows = capsys.readouterr().out
    command = ["score", str(pictures), "--gate", str(finished), "--report", str(page)]
    assert main(command) == main([*command, "--overwrite"]) == 1
    out, err = capsys.readouterr()
    assert out == 2 * rows
    assert f"report: {page}" in err
    gallery = galleries(page)["scored-images"]
    by_path = {row["path"]: row for row in map(json.loads, rows.splitlines())}
    assert len(gallery["cards"]) == 4
    for card in gallery["cards"]:
        row = by_path[card["name"]]
        assert (card["p_value"], gallery["classes"][card["label"]]) == (
            row["p_value"],
            row["label"],
        )
    assert gallery["rates"]["chosen"] == 0.05
    text = page.read_text()
    assert "1 file could not be read and got no score." in text
    assert "detector keeps no training images, so no nearest training images" in text


def test_the_groups_of_flagged_images_are_written_as_json(
    finished: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "groups.json"
    command = ["score", str(pictures), "--gate", str(finished), "--groups", str(file)]
    assert main(command) == 1
    out, err = capsys.readouterr()
    flagged = [row["path"] for row in map(json.loads, out.splitlines()) if row["is_ood"]]
    content = json.loads(file.read_text())
    assert content["flagged"] == len(flagged)
    assert content["groups"] == []  # of fewer than 20
    assert sorted(content["ungrouped"]) == sorted(content["label_first"]) == sorted(flagged)
    assert f"in no groups, written to {file}" in err
    assert main(command) == 2
    assert "groups.json exists. Replace it with" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_reported_before_anything_is_scored(
    finished: Path,
    pictures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("goen.cli.score.score", lambda *_, **__: pytest.fail("it has begun"))
    thesis = tmp_path / "thesis.html"
    thesis.write_text("<p>years of work")
    command = ["score", str(pictures), "--gate", str(finished)]
    assert main([*command, "--report", str(thesis)]) == 2
    assert "thesis.html exists. Replace it with" in capsys.readouterr().err
    assert thesis.read_text() == "<p>years of work"
    assert main([*command, "--training-images", "digits"]) == 2
    assert "--training-images goes with --report" in capsys.readouterr().err
    page = ["--report", str(tmp_path / "page.html")]
    assert main([*command, *page, "--training-images", "digits"]) == 2
    assert "keeps no training images: there are no nearest ones" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


# -- shards -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_folder(tmp_path / "p", encoded(20))
    (folder / "notes.txt").write_text("no picture")
    return folder


def run(*words: Path | str) -> int:
    return main(["score", *map(str, words)])


def test_the_shards_are_the_file_that_one_process_writes(
    finished: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = ["--gate", finished / "gate", "--batch-size", "8", "--false-alarm-rate", "0.1"]
    assert run(folder, *gate, "--out", tmp_path / "one.csv") == 1
    one = capsys.readouterr().err
    options = ["--shard-size", "8", "--format", "csv"]
    assert run(folder, *gate, *options, "--out", f"{tmp_path / 'scores'}/") == 1
    many = capsys.readouterr().err
    assert many.splitlines()[0] == one.splitlines()[0]  # the counts, and what was skipped
    assert "1 unreadable; 1 file skipped" in many
    assert f"written to {tmp_path / 'scores'}: 3 shards\n" in many
    files = score_shard_files(tmp_path / "scores")
    header, *rows = "".join(file.read_text() for file in files).splitlines()
    assert [header, *(row for row in rows if row != header)] == (
        (tmp_path / "one.csv").read_text().splitlines()
    )
    assert run(folder, *gate, *options, "--out", tmp_path / "scores") == 1
    assert "3 shards, 3 of them from before" in capsys.readouterr().err
    for more in (["--report", tmp_path / "page.html"], ["--copy-flagged", tmp_path / "copies"]):
        assert run(folder, *gate, *options, "--out", tmp_path / "scores", *more) == 2
        assert "3 shards that are scored, which --report" in capsys.readouterr().err


def test_parquet_is_the_default_and_lists_may_come_from_standard_input(
    finished: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = write_parquet(tmp_path / "a.parquet", encoded(5), mask=encoded(5))
    listed = f"{folder / '00000.png'}\n{parquet}\n".encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(listed)))
    words = ["-", "--gate", finished / "gate", "--workers", "1", "--out", tmp_path / "scores"]
    assert run(*words, "--image-column", "mask", "--flagged-only") == 1
    rows = pq.read_table([*map(str, score_shard_files(tmp_path / "scores"))]).to_pylist()
    assert all(row["is_ood"] for row in rows)
    totals = json.loads((tmp_path / "scores" / "_manifest.json").read_text())
    assert (totals["scored"], totals["unreadable"]) == (5, 1)
    assert totals["rows"] == totals["flagged"] == len(rows)


def test_a_stopped_job_says_that_it_can_be_continued(
    finished: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("goen.scoring.pipeline.ShardScorer.rows", stop)
    words = [folder, "--gate", finished / "gate", "--workers", "1", "--out", tmp_path / "scores"]
    assert run(*words) == 130
    assert "Finished shards are kept; the same command continues" in capsys.readouterr().err


def test_tars_parquet_lists_and_urls_are_read_in_one_process_and_go_to_every_sink(
    finished: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet = write_parquet(tmp_path / "a.parquet", encoded(5))
    tar = write_tar(tmp_path / "a.tar", {f"{n}.png": c for n, c in enumerate(encoded(4))})
    listed, disguised = tmp_path / "list.txt", tmp_path / "picture.txt"
    listed.write_text(f"{folder / '00000.png'}\n")
    disguised.write_bytes((folder / "00000.png").read_bytes())
    page, copies = tmp_path / "page.html", tmp_path / "copies"
    sinks = ["--report", page, "--copy-flagged", copies, "--sort", "path"]
    gate = ["--gate", finished / "gate", "--false-alarm-rate", "0.97"]
    assert run(parquet, tar, listed, disguised, f"file://{tar}", *gate, *sinks) == 1
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    read = [row["path"] for row in rows if row["is_ood"] is not None]
    assert len(rows) == 5 + 4 + 1 + 1 + 4
    assert read == sorted(read)
    assert {str(disguised), f"{tar}#0.png", f"file://{tar}#0.png", f"{parquet}#0"} <= {*read}
    assert {card["name"] for card in galleries(page)["scored-images"]["cards"]} == {*read}
    flagged = sum(row["is_ood"] is True for row in rows)
    assert f"{flagged} flagged images copied" in err
    assert len(list(copies.iterdir())) == flagged + 1
