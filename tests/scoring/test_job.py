import io
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from goen.data.picture_sources import PictureSources
from goen.errors import UsageError
from goen.gate import Gate
from goen.gate.score_files import find_files, score_columns, score_files
from goen.gate.score_folder import score_shard_files
from goen.gate.score_job import (
    Finished,
    NumberedShard,
    Run,
    gate_identity,
    run_here,
    score_job,
)
from goen.gate.score_shards import ShardSettings
from goen.gate.score_writers import open_writer

from ..picture_sources import encoded, write_folder, write_parquet
from .test_gate import make_gate
from .test_pickling import features_gate

SETTINGS = ShardSettings("jsonl", batch_size=8)


@pytest.fixture(scope="module")
def gate() -> Gate:
    return make_gate().with_false_alarm_rate(0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("job") / "p", encoded(100))


def sources(*given: Path | str, size: int = 16) -> PictureSources:
    return PictureSources([*map(str, given)], size)


def content(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in out.iterdir()}


def stopping_after(count: int, order: Callable[[list[NumberedShard]], list[NumberedShard]]) -> Run:
    """A process that is killed after so many shards, which it scores in this order."""

    def run(
        gate: Gate, settings: ShardSettings, tasks: Iterator[NumberedShard]
    ) -> Generator[Finished, None, None]:
        done = run_here(gate, settings, iter(order(list(tasks))))
        for _ in range(count):
            yield next(done)
        raise KeyboardInterrupt

    return run


def test_the_rows_are_those_of_goen_score(gate: Gate, folder: Path, tmp_path: Path) -> None:
    summary = score_job(gate, sources(folder), tmp_path / "scores", SETTINGS, run_here)
    columns = ["path", *score_columns(gate), "error"]
    with open_writer(tmp_path / "one.jsonl", "jsonl", columns) as write:
        files = find_files([folder]).files
        counts = score_files(gate, files, lambda one: write(one.row), batch_size=8)
    rows = b"".join(file.read_bytes() for file in score_shard_files(tmp_path / "scores"))
    assert rows == (tmp_path / "one.jsonl").read_bytes()
    assert (summary.counts, summary.shards, summary.kept) == (counts, 7, 0)


@pytest.mark.parametrize("order", [lambda tasks: tasks, lambda tasks: tasks[::-1]])
def test_a_job_that_was_interrupted_goes_on_with_what_is_missing(
    gate: Gate,
    folder: Path,
    tmp_path: Path,
    order: Callable[[list[NumberedShard]], list[NumberedShard]],
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "scores"
    score_job(gate, sources(folder), whole, SETTINGS, run_here)
    for stop in (2, 3):
        with pytest.raises(KeyboardInterrupt):
            score_job(gate, sources(folder), out, SETTINGS, stopping_after(stop, order))
    scored = []

    def noted(
        gate: Gate, settings: ShardSettings, tasks: Iterator[NumberedShard]
    ) -> Generator[Finished, None, None]:
        for finished in run_here(gate, settings, tasks):
            scored.append(finished.task.number)
            yield finished

    summary = score_job(gate, sources(folder), out, SETTINGS, noted)
    assert (summary.shards, summary.kept, len(scored)) == (7, 5, 2)
    assert content(out) == content(whole)
    again = score_job(gate, sources(folder), out, SETTINGS, noted)
    assert (again.kept, len(scored)) == (7, 2)
    assert again.counts == summary.counts


def test_new_pictures_are_scored_by_a_second_call(gate: Gate, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "p", encoded(40))
    score_job(gate, sources(folder), tmp_path / "scores", SETTINGS, run_here)
    (folder / "99999.png").write_bytes(encoded(1)[0])
    summary = score_job(gate, sources(folder), tmp_path / "scores", SETTINGS, run_here)
    assert (summary.shards, summary.kept) == (3, 2)
    assert summary.counts.scored == 40


def test_sources_through_fsspec_are_scored(gate: Gate, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    try:
        for number, picture in enumerate(encoded(20)):
            memory.pipe(f"/pictures/{number:02}.png", picture)
        local = write_parquet(tmp_path / "a.parquet", encoded(20))
        memory.pipe("/a.parquet", local.read_bytes())
        given = sources("memory://pictures", "memory://a.parquet", local)
        settings = replace(SETTINGS, form="parquet")
        summary = score_job(gate, given, tmp_path / "scores", settings, run_here)
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
    score_job(gate, sources(folder), out, SETTINGS, run_here)
    for other, settings, field in (
        (gate.with_false_alarm_rate(0.2), SETTINGS, "gate_sha256"),
        (gate, replace(SETTINGS, batch_size=4), "batch_size"),
        (gate, replace(SETTINGS, form="csv"), "format"),
        (gate, replace(SETTINGS, flagged_only=True), "flagged_only"),
    ):
        with pytest.raises(UsageError, match=f"scores of another job: {field}"):
            score_job(other, sources(folder), out, settings, run_here)
    # What does not change the rows may differ.
    assert score_job(gate, sources(folder), out, replace(SETTINGS, threads=1), run_here).kept == 7


def test_the_identity_of_a_gate_is_that_of_what_it_decides_by(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = gate_identity(gate)
    assert gate_identity(gate.with_false_alarm_rate(0.2)) != first
    monkeypatch.setattr("goen.runs.artifacts.versions", lambda: {"goen": "0"})
    assert gate_identity(gate) == first
    next(gate.network.parameters()).data[0] += 1e-3
    assert gate_identity(gate) != first
    next(gate.network.parameters()).data[0] -= 1e-3


def test_mistakes_get_a_sentence_and_leave_no_folder(
    gate: Gate, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "scores"
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("x")
    mistakes: list[tuple[AbstractContextManager[object], Gate, PictureSources]] = [
        (
            pytest.raises(UsageError, match=r"no pictures in .*empty: 1 file skipped"),
            gate,
            sources(tmp_path / "empty"),
        ),
        (
            pytest.raises(UsageError, match=r"multiple of 8 pictures .*got 12"),
            gate,
            sources(folder, size=12),
        ),
        (pytest.raises(UsageError, match="takes no images"), features_gate(), sources(folder)),
        (
            pytest.raises(UsageError, match="no pictures in -"),
            gate,
            PictureSources(["-"], 16, None, io.BytesIO(b"\n")),
        ),
    ]
    for raised, asked, given in mistakes:
        with raised:
            score_job(asked, given, out, SETTINGS, run_here)
    assert not out.exists()
