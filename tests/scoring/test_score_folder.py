import json
from pathlib import Path

import pytest

from goen.errors import ArtifactError, UsageError
from goen.gate.score_files import FileCounts
from goen.gate.score_folder import ShardRecord, open_score_folder, score_shard_files
from goen.gate.score_shards import ScoredShard
from goen.runs.manifest import Manifest

JOB = {"gate_sha256": "abc", "batch_size": 128}


def shard(text: str) -> ScoredShard:
    return ScoredShard(text.encode(), 1, FileCounts(2, 1, 1))


def filled(folder: Path, count: int = 3) -> Path:
    """A finished job."""
    with open_score_folder(folder, JOB, "jsonl") as scores:
        for number in reversed(range(count)):  # they finish in any order
            assert not scores.has(number, f"inputs {number}")
            scores.add(number, f"inputs {number}", shard(f"rows {number}\n"))
        assert scores.finish(count) == FileCounts(2 * count, count, count)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_finished_folder_lists_its_shards_in_order(tmp_path: Path) -> None:
    folder = filled(tmp_path / "scores")
    files = score_shard_files(folder)
    assert [file.name for file in files] == [f"part-{n:05}.jsonl" for n in range(3)]
    assert [file.read_text() for file in files] == ["rows 0\n", "rows 1\n", "rows 2\n"]
    manifest = json.loads((folder / "_manifest.json").read_text())
    assert (manifest["shards"], manifest["rows"]) == (3, 3)
    assert (manifest["scored"], manifest["flagged"], manifest["unreadable"]) == (6, 3, 3)


def test_partial_output_is_not_taken_for_whole(tmp_path: Path) -> None:
    folder = tmp_path / "scores"
    with open_score_folder(folder, JOB, "jsonl") as scores:
        scores.add(0, "inputs 0", shard("rows 0\n"))
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
    with open_score_folder(folder, JOB, "jsonl") as scores:  # a second start repairs it
        assert [scores.has(n, f"inputs {n}") for n in range(3)] == [True, False, True]
        with pytest.raises(ArtifactError, match="no complete scores"):
            score_shard_files(folder)
        scores.add(1, "inputs 1", shard("rows 1\n"))
        scores.finish(3)
    assert content(folder) == content(filled(tmp_path / "other"))


def test_a_line_that_was_cut_short_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "scores"
    with open_score_folder(folder, JOB, "jsonl") as scores:
        scores.add(0, "inputs 0", shard("rows 0\n"))
        scores.add(1, "inputs 1", shard("rows 1\n"))
    whole = (folder / "_shards.jsonl").read_bytes()
    (folder / "_shards.jsonl").write_bytes(whole[:-20])
    (folder / ".part-00002.jsonl.123.abc.tmp").write_bytes(b"half")
    with open_score_folder(folder, JOB, "jsonl") as scores:
        assert scores.has(0, "inputs 0")
        assert not scores.has(1, "inputs 1")
        scores.add(1, "inputs 1", shard("rows 1\n"))
    with open_score_folder(folder, JOB, "jsonl") as scores:
        assert scores.has(1, "inputs 1")
        assert not scores.has(2, "inputs 2")
        scores.add(2, "inputs 2", shard("rows 2\n"))
        scores.finish(3)
    assert content(folder) == content(filled(tmp_path / "other"))


def test_shards_of_other_inputs_are_scored_again_and_superfluous_ones_removed(
    tmp_path: Path,
) -> None:
    folder = filled(tmp_path / "scores")
    (folder / "mine.txt").write_text("stays")
    with open_score_folder(folder, JOB, "jsonl") as scores:
        assert scores.has(0, "inputs 0")
        assert not scores.has(1, "others")
        scores.add(1, "others", shard("rows Y\n"))
        scores.finish(2)
    assert [f.read_text() for f in score_shard_files(folder)] == ["rows 0\n", "rows Y\n"]
    assert not (folder / "part-00002.jsonl").exists()
    assert (folder / "mine.txt").exists()


def test_a_job_that_was_killed_as_it_began_continues(tmp_path: Path) -> None:
    folder = tmp_path / "scores"
    folder.mkdir()
    (folder / "._job.json.123.ab.tmp").write_text("half")
    with open_score_folder(folder, JOB, "jsonl"):
        assert (folder / "_job.json").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "._job.json.mine.tmp").write_text("x")
    with (
        pytest.raises(UsageError, match="and no scores of goen"),
        open_score_folder(tmp_path / "other", JOB, "jsonl"),
    ):
        pass


def test_a_folder_of_something_else_or_of_another_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(UsageError, match="is a file; --workers writes a folder"),
        open_score_folder(tmp_path / "file", JOB, "jsonl"),
    ):
        pass
    with (
        pytest.raises(UsageError, match="holds file and no scores of goen"),
        open_score_folder(tmp_path, JOB, "jsonl"),
    ):
        pass
    folder = filled(tmp_path / "scores")
    before = content(folder)
    with (
        pytest.raises(UsageError, match="another job: batch_size was 128, is 64"),
        open_score_folder(folder, {**JOB, "batch_size": 64}, "jsonl"),
    ):
        pass
    (folder / "_job.json").write_text("{")
    with (
        pytest.raises(UsageError, match=r"its _job.json is damaged"),
        open_score_folder(folder, JOB, "jsonl"),
    ):
        pass
    assert {**content(folder), "_job.json": before["_job.json"]} == before


def test_two_processes_do_not_write_into_one_folder(tmp_path: Path) -> None:
    import subprocess
    import sys

    script = (
        "import sys; from pathlib import Path; from goen.errors import UsageError\n"
        "from goen.gate.score_folder import open_score_folder\n"
        "try:\n"
        f"    with open_score_folder(Path(sys.argv[1]), {JOB!r}, 'jsonl'): pass\n"
        "except UsageError as error: sys.exit(str(error))\n"
    )
    with open_score_folder(tmp_path / "scores", JOB, "jsonl"):
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
