"""Score sources of any size into a folder of shards, in this process or in many; resumable."""

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load
from torch import uint8

from goen.data.find_pictures import describe_skipped
from goen.data.inputs import check_batch_size
from goen.data.picture_shards import PictureShard
from goen.data.picture_sources import PictureSources
from goen.errors import UsageError
from goen.gate.gate import Gate
from goen.gate.pickling import gate_files
from goen.gate.score_files import FileCounts, score_columns
from goen.gate.score_folder import ScoreFolder, open_score_folder
from goen.gate.score_shards import ScoredShard, ShardScorer, ShardSettings
from goen.progress import bar
from goen.runs.manifest import JsonObject
from goen.runs.provenance import versions

DEFAULT_SHARD_SIZE = 4096


class NumberedShard(NamedTuple):
    """A shard and its place among all."""

    number: int
    shard: PictureShard


class Finished(NamedTuple):
    """A shard that was scored."""

    task: NumberedShard
    result: ScoredShard


Run = Callable[[Gate, ShardSettings, Iterator[NumberedShard]], Generator[Finished, None, None]]
"""Scores shards and returns them in any order; asks for the next only when it has a use for it."""


@dataclass(frozen=True)
class JobSummary:
    """What a job did.

    Attributes:
        counts: of all pictures.
        shards: of all.
        kept: shards that were there already.
    """

    counts: FileCounts
    shards: int
    kept: int


def score_job(
    gate: Gate, sources: PictureSources, out: Path, settings: ShardSettings, run: Run
) -> JobSummary:
    """Score all pictures of the sources into a folder; continues what was begun there.

    Args:
        gate: scores.
        sources: of the pictures.
        out: the folder; see ``goen.gate.score_folder``.
        settings: of scoring.
        run: scores the shards, such as ``run_here``.

    Raises:
        UsageError: there are no pictures, or the folder holds something else.
    """
    check_batch_size(settings.batch_size)
    if sources.shard_size < 1 or sources.shard_size % settings.batch_size:
        raise UsageError(
            f"A shard has a multiple of {settings.batch_size} pictures (the batch size), so that "
            f"batches are those of one process; got {sources.shard_size}."
        )
    gate.picture_form  # noqa: B018  (a gate of pictures, or an error)
    shards = _at_least_one(sources)
    job = _job(gate, sources, settings)
    with open_score_folder(out, job, settings.form) as folder, bar() as progress:
        task = progress.add_task("scoring", total=None, status="pictures")
        missing = _Missing(shards, folder)
        with closing(run(gate, settings, iter(missing))) as finished:
            for (number, shard), result in finished:
                folder.add(number, shard.identity, result)
                progress.advance(task, result.counts.scored + result.counts.unreadable)
        return JobSummary(folder.finish(missing.seen), missing.seen, missing.kept)


def run_here(
    gate: Gate, settings: ShardSettings, tasks: Iterator[NumberedShard]
) -> Generator[Finished, None, None]:
    """Score the shards in this process."""
    scorer = ShardScorer(gate, settings)
    for task in tasks:
        yield Finished(task, scorer.score(task.shard))


class _Missing:
    """The shards that are not finished; counts all of them while they are listed."""

    def __init__(self, shards: Iterator[PictureShard], folder: ScoreFolder) -> None:
        self._shards, self._folder = shards, folder
        self.seen = self.kept = 0

    def __iter__(self) -> Iterator[NumberedShard]:
        for number, shard in enumerate(self._shards):
            self.seen = number + 1
            if self._folder.has(number, shard.identity):
                self.kept += 1
            else:
                yield NumberedShard(number, shard)


def _at_least_one(sources: PictureSources) -> Iterator[PictureShard]:
    shards = sources.shards()
    first = next(shards, None)
    if first is None:
        skipped = f": {describe_skipped(sources.skipped)}" if sources.skipped else ""
        raise UsageError(f"There are no pictures in {', '.join(sources.given)}{skipped}.")
    return chain([first], shards)


def _job(gate: Gate, sources: PictureSources, settings: ShardSettings) -> JsonObject:
    """What the rows depend on; threads and workers are not among it."""
    here = versions()
    return {
        "sources": [place.encode("utf-8", "backslashreplace").decode() for place in sources.given],
        "image_column": sources.column,
        "shard_size": sources.shard_size,
        "batch_size": settings.batch_size,
        "format": settings.form,
        "flagged_only": settings.flagged_only,
        "device": settings.device,
        "gate_sha256": gate_identity(gate),
        "columns": ["path", *score_columns(gate), "error"],
        "versions": {name: here[name] for name in ("goen", "torch")},
    }


def gate_identity(gate: Gate) -> str:
    """A hash of what the gate decides by, the same on every machine: its tensors and settings."""
    files = gate_files(gate)
    manifest = json.loads(files["manifest.json"])
    # The versions are those of this process; the probe is an output of the network, whose last
    # bits depend on the processor.
    for name in ("versions", "tensors_sha256"):
        del manifest[name]
    tensors = load(files["tensors.safetensors"])
    del tensors["probe"]
    digest = sha256(json.dumps(manifest, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(uint8).numpy().tobytes())
    return digest.hexdigest()
