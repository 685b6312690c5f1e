"""``goen score --workers``: in this process here, with Ray in tests/gate/test_ray_workers.py."""

import io
import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from goen.cli.main import main
from goen.cli.score_workers import default_threads
from goen.gate.score_folder import score_shard_files

from ..picture_sources import encoded, write_folder, write_parquet

pytestmark = pytest.mark.xdist_group("finished run")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_folder(tmp_path / "p", encoded(20))
    (folder / "notes.txt").write_text("no picture")
    return folder


def score(*words: Path | str) -> int:
    return main(["score", *map(str, words)])


def test_the_shards_are_the_file_that_one_process_writes(
    finished: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = ["--gate", finished / "gate", "--batch-size", "8", "--false-alarm-rate", "0.1"]
    assert score(folder, *gate, "--out", tmp_path / "one.csv") == 1
    one = capsys.readouterr().err
    options = ["--workers", "1", "--shard-size", "8", "--format", "csv"]
    assert score(folder, *gate, *options, "--out", tmp_path / "scores") == 1
    many = capsys.readouterr().err
    assert many.splitlines()[0] == one.splitlines()[0]  # the counts, and what was skipped
    assert "1 unreadable; 1 file skipped" in many
    assert f"written to {tmp_path / 'scores'}: 3 shards\n" in many
    files = score_shard_files(tmp_path / "scores")
    header, *rows = "".join(file.read_text() for file in files).splitlines()
    assert [header, *(row for row in rows if row != header)] == (
        (tmp_path / "one.csv").read_text().splitlines()
    )
    assert score(folder, *gate, *options, "--out", tmp_path / "scores") == 1
    assert "3 shards, 3 of them from before" in capsys.readouterr().err


def test_parquet_is_the_default_and_lists_may_come_from_standard_input(
    finished: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = write_parquet(tmp_path / "a.parquet", encoded(5), mask=encoded(5))
    listed = f"{folder / '00000.png'}\n{parquet}\n".encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(listed)))
    words = ["-", "--gate", finished / "gate", "--workers", "1", "--out", tmp_path / "scores"]
    assert score(*words, "--image-column", "mask", "--flagged-only") == 1
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

    monkeypatch.setattr("goen.gate.score_job.ShardScorer.score", stop)
    words = [folder, "--gate", finished / "gate", "--workers", "1", "--out", tmp_path / "scores"]
    assert score(*words) == 130
    assert "Finished shards are kept; the same command continues" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", "1"], "give --out FOLDER"),
        (["--workers", "1", "--out", "-"], "give --out FOLDER"),
        (["--workers", "1", "--out", "scores.csv"], "give --out FOLDER"),
        (["--workers", "0", "--out", "scores"], "1 worker or more"),
        (
            ["--workers", "1", "--threads", "0", "--out", "scores"],
            "threads must be an integer, at least 1",
        ),
        (["--workers", "1", "--sort", "score", "--out", "s"], "--sort does not go with --workers"),
        (["--workers", "1", "--report", "p.html", "--out", "s"], "--report does not go with"),
        (["--workers", "1", "--copy-flagged", "f", "--out", "s"], "--copy-flagged does not go"),
        (["--workers", "1", "--format", "table", "--out", "s"], "--format table does not go"),
        (["--workers", "1", "--shard-size", "100", "--out", "s"], "a multiple of 128"),
        (["--cluster", "auto"], "--cluster goes with --workers N"),
        (["--image-column", "x"], "--image-column goes with --workers N"),
        (["--threads", "1"], "--threads goes with --workers N"),
        (["s3://bucket/photos"], "s3://bucket/photos is read in shards: give --workers 1"),
        (["-", "-", "--workers", "1", "--out", "s"], "give - once"),
    ],
)
def test_mistakes_get_a_sentence(
    words: list[str],
    message: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    assert score(folder, *words) == 2
    assert message in capsys.readouterr().err


def test_tars_parquet_files_and_lists_alone_are_said_to_need_workers(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet = write_parquet(tmp_path / "a.parquet", encoded(5))
    assert score(parquet, folder / "notes.txt") == 2
    assert f"{parquet} is read in shards: give --workers 1" in capsys.readouterr().err
    picture, disguised = folder / "00000.png", tmp_path / "picture.txt"
    disguised.write_bytes(picture.read_bytes())
    assert score(disguised) == 0
    assert score(picture, parquet) == 1  # a row with an error, as of any file that is no picture
    assert "1 scored" in capsys.readouterr().err


def test_the_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert [default_threads(n, None) for n in (1, 2, 3, 8, 20)] == [None, 4, 2, 1, 1]
    assert default_threads(4, "auto") == 1
