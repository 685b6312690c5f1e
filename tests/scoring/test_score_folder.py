import json
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from goen.errors import ArtifactError, UsageError
from goen.gate.prediction import ScoreRow
from goen.io.files import claim_folder
from goen.io.manifest import JsonObject, Manifest
from goen.scoring.pipeline import NumberedShard
from goen.scoring.rows import RowCounts
from goen.scoring.score_folder import (
    ScoreFolder,
    ShardRecord,
    open_score_folder,
    score_shard_files,
)
from goen.scoring.shards import UnreadableShard

JOB: JsonObject = {"gate_sha256": "abc", "batch_size": 128}


COLUMNS = ["path", "is_ood"]


def opened(folder: Path, job: JsonObject = JOB) -> AbstractContextManager[ScoreFolder]:
    return open_score_folder(folder, job, "jsonl", COLUMNS)


def task(number: int, inputs: str | None = None) -> NumberedShard:
    return NumberedShard(number, UnreadableShard(inputs or f"inputs {number}", ""))


def add(scores: ScoreFolder, number: int, name: str | None = None) -> RowCounts:
    """Write a shard of three rows."""
    names = [name or f"rows {number}", "flagged", "broken"]
    rows: list[ScoreRow] = [
        {"path": path, "is_ood": is_ood}
        for path, is_ood in zip(names, (False, True, None), strict=True)
    ]
    return scores.write(task(number, name), [rows[:2], rows[2:]])


def filled(folder: Path, count: int = 3) -> Path:
    """A finished job."""
    with opened(folder) as scores:
        for number in reversed(range(count)):  # they finish in any order
            assert scores.finished(task(number)) is None
            assert add(scores, number) == RowCounts(2, 1, 1)
            assert scores.finished(task(number)) == RowCounts(2, 1, 1)
        scores.close(count)
    return folder


def first_names(folder: Path) -> list[str]:
    files = score_shard_files(folder)
    return [json.loads(file.read_text().splitlines()[0])["path"] for file in files]


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_finished_folder_lists_its_shards_in_order(tmp_path: Path) -> None:
    folder = filled(tmp_path / "scores")
    files = score_shard_files(folder)
    assert [file.name for file in files] == [f"part-{n:05}.jsonl" for n in range(3)]
    assert first_names(folder) == ["rows 0", "rows 1", "rows 2"]
    manifest = json.loads((folder / "_manifest.json").read_text())
    assert (manifest["shards"], manifest["rows"]) == (3, 9)
    assert (manifest["scored"], manifest["flagged"], manifest["unreadable"]) == (6, 3, 3)


def test_partial_output_is_not_taken_for_whole(tmp_path: Path) -> None:
    folder = tmp_path / "scores"
    with opened(folder) as scores:
        add(scores, 0)
        with pytest.raises(ArtifactError, match=r"no _manifest.json.*same command continues"):
            score_shard_files(folder)
    (folder / "_shards.jsonl").write_bytes(b"")
    with pytest.raises(ArtifactError, match="no complete scores"):
        score_shard_files(folder)


@pytest.mark.parametrize("how", ["changed", "missing", "list"])
def test_changed_and_missing_shards_are_noticed(tmp_path: Path, how: str) -> None:
    folder = filled(tmp_path / "scores")
    part = folder / "part-00001.jsonl"
    if how == "changed":
        part.write_text("rows X\n")
    elif how == "missing":
        part.unlink()
    else:
        lines = (folder / "_shards.jsonl").read_text().splitlines(keepends=True)
        (folder / "_shards.jsonl").write_text("".join(lines[:2]))
    with pytest.raises(ArtifactError, match="are damaged"):
        score_shard_files(folder)
    if how == "list":
        return
    with opened(folder) as scores:  # a second start repairs it
        assert [bool(scores.finished(task(n))) for n in range(3)] == [True, False, True]
        with pytest.raises(ArtifactError, match="no complete scores"):
            score_shard_files(folder)
        add(scores, 1)
        scores.close(3)
    assert content(folder) == content(filled(tmp_path / "other"))


def test_a_line_that_was_cut_short_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "scores"
    with opened(folder) as scores:
        add(scores, 0)
        add(scores, 1)
    whole = (folder / "_shards.jsonl").read_bytes()
    (folder / "_shards.jsonl").write_bytes(whole[:-20])
    (folder / ".part-00002.jsonl.123.abc.tmp").write_bytes(b"half")
    with opened(folder) as scores:
        assert scores.finished(task(0))
        assert not scores.finished(task(1))
        add(scores, 1)
    with opened(folder) as scores:
        assert scores.finished(task(1))
        assert not scores.finished(task(2))
        add(scores, 2)
        scores.close(3)
    assert content(folder) == content(filled(tmp_path / "other"))


def test_shards_of_other_inputs_are_scored_again_and_superfluous_ones_removed(
    tmp_path: Path,
) -> None:
    folder = filled(tmp_path / "scores")
    (folder / "mine.txt").write_text("stays")
    with opened(folder) as scores:
        assert scores.finished(task(0))
        assert not scores.finished(task(1, "others"))
        add(scores, 1, "others")
        scores.close(2)
    assert first_names(folder) == ["rows 0", "others"]
    assert not (folder / "part-00002.jsonl").exists()
    assert (folder / "mine.txt").exists()


def test_a_job_that_was_killed_as_it_began_continues(tmp_path: Path) -> None:
    folder = claim_folder(tmp_path / "scores", "scores")
    (folder / "._job.json.123.ab.tmp").write_text("half")
    with opened(folder):
        assert (folder / "_job.json").exists()


def test_a_folder_of_something_else_or_of_another_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(UsageError, match="is a file, not a folder of shards"),
        opened(tmp_path / "file"),
    ):
        pass
    with (
        pytest.raises(UsageError, match="a folder that holds file, not a folder with"),
        opened(tmp_path),
    ):
        pass
    folder = filled(tmp_path / "scores")
    before = content(folder)
    with (
        pytest.raises(UsageError, match="another job: batch_size was 128, is 64"),
        opened(folder, {**JOB, "batch_size": 64}),
    ):
        pass
    (folder / "_job.json").write_text("{")
    with (
        pytest.raises(UsageError, match=r"its _job.json is damaged"),
        opened(folder),
    ):
        pass
    assert {**content(folder), "_job.json": before["_job.json"]} == before


def test_two_processes_do_not_write_into_one_folder(tmp_path: Path) -> None:
    import subprocess
    import sys

    script = (
        "import sys; from pathlib import Path; from goen.errors import UsageError\n"
        "from goen.scoring.score_folder import open_score_folder\n"
        "try:\n"
        f"    with open_score_folder(Path(sys.argv[1]), {JOB!r}, 'jsonl', []): pass\n"
        "except UsageError as error: sys.exit(str(error))\n"
    )
    with opened(tmp_path / "scores"):
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "scores")],
            capture_output=True,
            text=True,
        )
    assert "Another goen is at work" in done.stderr


def test_a_list_with_names_outside_the_folder_is_refused() -> None:
    record = {"number": 0, "file": "a", "inputs": "", "sha256": ""}
    counts = dict.fromkeys(("rows", "scored", "flagged", "unreadable"), 0)
    assert ShardRecord.from_json(Manifest({**record, **counts})).file == "a"
    for change in ({"file": "../a"}, {"rows": -1}, {"extra": 1}, {"number": "0"}):
        with pytest.raises(ValueError, match=r"its |unknown"):
            ShardRecord.from_json(Manifest({**record, **counts, **change}))
