from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from goen.errors import UsageError
from goen.gate import Gate
from goen.scoring.job import describe_job, gate_identity
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
from goen.scoring.rows import all_columns
from goen.scoring.score_folder import open_score_folder, score_shard_files
from goen.scoring.sinks import RowFormat, RowSink, open_writer
from goen.scoring.sources import Sources
from tests.gate.test_gate import make_gate
from tests.image_sources import encoded, features_gate, write_folder, write_parquet

SETTINGS = ScoreSettings(batch_size=8)


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


def content(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in out.iterdir()}


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
