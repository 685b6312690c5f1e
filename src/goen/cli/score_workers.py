"""The option --workers of ``goen score``: many pictures, in shards, by many processes."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from goen.cli.print_scores import counted
from goen.cli.terminal import note
from goen.data.forms import COLOUR
from goen.data.picture_sources import STANDARD_INPUT, PictureSources, is_source_of_pictures
from goen.data.urls import is_url
from goen.errors import UsageError
from goen.gate import Gate
from goen.gate.ray_workers import RayWorkers, ray_run
from goen.gate.score_files import FileCounts
from goen.gate.score_job import run_here, score_job
from goen.gate.score_shards import ShardSettings

_FILES = (".jsonl", ".ndjson", ".csv", ".parquet")


@dataclass(frozen=True)
class WorkerOptions:
    """Options that go with --workers."""

    workers: int
    cluster: str | None
    shard_size: int
    image_column: str | None


def check_worker_options(
    workers: int | None,
    places: Sequence[str],
    with_workers: Mapping[str, object],
    without_workers: Mapping[str, object],
) -> None:
    """Raise a UsageError for what needs --workers and for what does not go with it.

    Args:
        workers: the option.
        places: to score.
        with_workers: values of options that go with --workers only, by name.
        without_workers: values of options that do not go with it.
    """
    excluded = without_workers if workers is not None else with_workers
    for option, value in excluded.items():
        if value:
            needs = "does not go with --workers" if workers is not None else "goes with --workers N"
            raise UsageError(f"{option} {needs}.")
    for place in places:
        if workers is None and is_url(place):
            raise _read_in_shards(place)


def check_not_only_sources(places: Sequence[str]) -> None:
    """Raise a UsageError if all are tars, Parquet files or lists of pictures: they need --workers.

    One of them among pictures is a row with an error: a shell may have put it there for a ``*``.
    """
    if all(map(is_source_of_pictures, places)):
        raise _read_in_shards(places[0])


def _read_in_shards(place: str) -> UsageError:
    return UsageError(f"{place} is read in shards: give --workers 1 (or more) and --out FOLDER.")


def score_in_shards(
    gate: Gate,
    places: Sequence[str],
    out: Path | None,
    options: WorkerOptions,
    settings: ShardSettings,
) -> FileCounts:
    """Score everything into a folder of shards; print how it went.

    Raises:
        UsageError: no folder to write, or an invalid number of workers.
    """
    if out is None or out == Path("-") or out.suffix.lower() in _FILES:
        raise UsageError("--workers writes shards into a folder: give --out FOLDER.")
    if list(places).count(STANDARD_INPUT) > 1:
        raise UsageError("Standard input can be read once: give - once.")
    workers = RayWorkers(options.workers, options.cluster)
    alone = workers.count == 1 and workers.cluster is None
    sources = PictureSources(
        places,
        options.shard_size,
        options.image_column,
        sys.stdin.buffer if sys.stdin else None,
        arrays=gate.picture_form != COLOUR,
    )
    try:
        summary = score_job(gate, sources, out, settings, run_here if alone else ray_run(workers))
    except KeyboardInterrupt:
        note("Finished shards are kept; the same command continues from there.")
        raise
    kept = f", {summary.kept:,} of them from before" if summary.kept else ""
    shards = "1 shard" if summary.shards == 1 else f"{summary.shards:,} shards"
    note(counted(summary.counts, sources.skipped, gate))
    note(f"written to {out}: {shards}{kept}")
    return summary.counts


def default_threads(workers: int, cluster: str | None) -> int | None:
    """Threads of each worker: the cores of this machine, shared out; 1 on a cluster.

    None for one worker: torch's own.
    """
    if cluster is not None:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return None if workers == 1 else max(1, (cores or 1) // max(1, workers))
