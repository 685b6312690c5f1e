import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from goen.errors import ArtifactError, UsageError
from goen.gate import Gate
from goen.gate.prediction import ScoreRow
from goen.io.files import claim_folder
from goen.io.manifest import JsonObject, Manifest
from goen.scoring.pipeline import (
    NumberedShard,
    Observer,
    Run,
    ScoredShard,
    ScoreSettings,
    ScoreSummary,
    run_here,
    score,
)
from goen.scoring.rows import RowCounts, all_columns
from goen.scoring.score_folder import (
    ScoreFolder,
    ShardRecord,
    describe_job,
    gate_identity,
    open_score_folder,
    score_shard_files,
)
from goen.scoring.shards import UnreadableShard
from goen.scoring.sinks import RowFormat, RowSink, open_writer
from goen.scoring.sources import Sources
from tests.gate.test_gate import make_gate
from tests.image_sources import encoded, features_gate, write_folder, write_parquet

SETTINGS = ScoreSettings(batch_size=8)
JOB: JsonObject = {"gate_sha256": "abc", "batch_size": 128}


COLUMNS = ["path", "is_ood"]


def opened(
    folder: Path, job: JsonObject = JOB, *, overwrite: bool = False
) -> AbstractContextManager[ScoreFolder]:
    return open_score_folder(folder, job, "jsonl", COLUMNS, overwrite=overwrite)


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


def test_scores_of_another_job_are_replaced_with_overwrite(tmp_path: Path) -> None:
    folder = filled(tmp_path / "scores")
    other = {**JOB, "batch_size": 64}
    with opened(folder, overwrite=True) as scores:  # the same job continues
        assert len(scores.records) == 3
    with opened(folder, other, overwrite=True) as scores:
        assert not scores.records
        assert sorted(p.name for p in folder.iterdir()) == [".goen", ".lock", "_job.json"]
        add(scores, 0)
    with opened(folder, other) as scores:
        assert len(scores.records) == 1


def test_a_folder_of_something_else_or_of_another_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(UsageError, match="is a file, not a folder of shards"),
        opened(tmp_path / "file"),
    ):
        pass
    with (
        pytest.raises(UsageError, match="a folder that holds file, not a scores folder"),
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


def score_job(
    gate: Gate,
    given: Sequence[Path | str],
    out: Path,
    settings: ScoreSettings = SETTINGS,
    run: Run = run_here,
    *,
    row_format: RowFormat = "jsonl",
    flagged_only: bool = False,
) -> ScoreSummary:
    """Score into a folder of shards of 16 images, as ``goen score`` does."""
    sources = Sources([*map(str, given)], gate, 16)
    job = describe_job(sources, settings, row_format, flagged_only=flagged_only)
    with open_score_folder(
        out, job, row_format, all_columns(gate), flagged_only=flagged_only
    ) as folder:
        return score(gate, sources, folder, settings, run=run)


@pytest.fixture(scope="module")
def gate() -> Gate:
    return make_gate().with_false_alarm_rate(0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("job") / "p", encoded(100))


def stopping_after(count: int, order: Callable[[list[NumberedShard]], list[NumberedShard]]) -> Run:
    """A process that is killed after so many shards, which it scores in this order."""

    def run(
        gate: Gate,
        settings: ScoreSettings,
        observer: Observer | None,
        tasks: Iterator[NumberedShard],
    ) -> Generator[ScoredShard, None, None]:
        done = run_here(gate, settings, observer, iter(order(list(tasks))))
        for _ in range(count):
            yield next(done)
        raise KeyboardInterrupt

    return run


@pytest.mark.parametrize("row_format", ["jsonl", "csv", "parquet"])
def test_the_rows_are_those_of_one_file(
    gate: Gate, folder: Path, tmp_path: Path, row_format: RowFormat
) -> None:
    out, one = tmp_path / "scores", tmp_path / "one"
    summary = score_job(gate, [folder], out, row_format=row_format)
    with open_writer(one, row_format, all_columns(gate)) as write:
        whole = score(gate, Sources([str(folder)], gate), RowSink(write), SETTINGS)
    assert summary.counts == whole.counts
    assert (summary.shards, summary.kept) == (7, 0)
    files = score_shard_files(out)
    if row_format == "parquet":
        assert pq.read_table([*map(str, files)]).equals(pq.read_table(one))
        return
    lines = [line for file in files for line in file.read_text().splitlines()]
    header = lines[:1] if row_format == "csv" else []
    rows = [line for line in lines if line not in header]
    assert [*header, *rows] == one.read_text().splitlines()


@pytest.mark.parametrize("order", [lambda tasks: tasks, lambda tasks: tasks[::-1]])
def test_a_job_that_was_interrupted_goes_on_with_what_is_missing(
    gate: Gate,
    folder: Path,
    tmp_path: Path,
    order: Callable[[list[NumberedShard]], list[NumberedShard]],
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "scores"
    score_job(gate, [folder], whole)
    for stop in (2, 3):
        with pytest.raises(KeyboardInterrupt):
            score_job(gate, [folder], out, SETTINGS, stopping_after(stop, order))
    scored = []

    def noted(
        gate: Gate,
        settings: ScoreSettings,
        observer: Observer | None,
        tasks: Iterator[NumberedShard],
    ) -> Generator[ScoredShard, None, None]:
        for done in run_here(gate, settings, observer, tasks):
            scored.append(done.task.number)
            yield done

    summary = score_job(gate, [folder], out, SETTINGS, noted)
    assert (summary.shards, summary.kept, len(scored)) == (7, 5, 2)
    assert content(out) == content(whole)
    again = score_job(gate, [folder], out, SETTINGS, noted)
    assert (again.kept, len(scored)) == (7, 2)
    assert again.counts == summary.counts


def test_new_pictures_are_scored_by_a_second_call(gate: Gate, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "p", encoded(40))
    score_job(gate, [folder], tmp_path / "scores")
    (folder / "99999.png").write_bytes(encoded(1)[0])
    summary = score_job(gate, [folder], tmp_path / "scores")
    assert (summary.shards, summary.kept) == (3, 2)
    assert summary.counts.scored == 40


def test_sources_through_fsspec_are_scored(gate: Gate, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    try:
        for number, picture in enumerate(encoded(20)):
            memory.pipe(f"/pictures/{number:02}.png", picture)
        local = write_parquet(tmp_path / "a.parquet", encoded(20))
        memory.pipe("/a.parquet", local.read_bytes())
        given = ["memory://pictures", "memory://a.parquet", local]
        summary = score_job(gate, given, tmp_path / "scores", row_format="parquet")
    finally:
        memory.store.clear()
        memory.pseudo_dirs[:] = [""]
    assert summary.counts.unreadable == 3
    table = pq.read_table([*map(str, score_shard_files(tmp_path / "scores"))])
    scores = np.array(table["score"].to_pylist(), dtype=float).reshape(3, 20)
    assert np.array_equal(scores[0], scores[2], equal_nan=True)
    assert np.array_equal(scores[1], scores[2], equal_nan=True)
    assert table["path"].to_pylist()[19:22] == [
        "memory:///pictures/19.png",
        "memory://a.parquet#0",
        "memory://a.parquet#1",
    ]


def test_another_gate_or_setting_is_another_job(gate: Gate, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores"
    score_job(gate, [folder], out)
    another = "scores of another job: "
    with pytest.raises(UsageError, match=f"{another}gate_sha256"):
        score_job(gate.with_false_alarm_rate(0.2), [folder], out)
    with pytest.raises(UsageError, match=f"{another}batch_size"):
        score_job(gate, [folder], out, replace(SETTINGS, batch_size=4))
    with pytest.raises(UsageError, match=f"{another}engine"):
        score_job(gate, [folder], out, replace(SETTINGS, engine="onnxruntime"))
    with pytest.raises(UsageError, match=f"{another}format"):
        score_job(gate, [folder], out, row_format="csv")
    with pytest.raises(UsageError, match=f"{another}flagged_only"):
        score_job(gate, [folder], out, flagged_only=True)
    # What does not change the rows may differ.
    threads = torch.get_num_threads()
    try:
        assert score_job(gate, [folder], out, replace(SETTINGS, threads=1)).kept == 7
    finally:
        torch.set_num_threads(threads)


def test_the_identity_of_a_gate_is_that_of_what_it_decides_by(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = gate_identity(gate)
    assert gate_identity(gate.with_false_alarm_rate(0.2)) != first
    monkeypatch.setattr("goen.io.artifacts.versions", lambda: {"goen": "0"})
    assert gate_identity(gate) == first
    next(gate.network.parameters()).data[0] += 1e-3
    assert gate_identity(gate) != first
    next(gate.network.parameters()).data[0] -= 1e-3


def test_features_are_a_job_as_well(tmp_path: Path) -> None:
    gate = features_gate()
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(20, 4)))
    summary = score_job(gate, [tmp_path / "a.npy"], tmp_path / "scores")
    assert (summary.counts.scored, summary.shards) == (20, 1)
    assert score_job(gate, [tmp_path / "a.npy"], tmp_path / "scores").kept == 1
