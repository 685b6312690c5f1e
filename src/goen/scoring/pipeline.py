"""The one loop that scores: shards, batches, gate, rows.

``Sources`` makes shards, a ``Sink`` takes their rows, and who runs the middle, this process
(``run_here``) or many (``goen.scoring.ray_workers``), changes nothing else: batches never cross the
border of a shard, and come in the order of the inputs.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from rich.progress import Progress

from goen.checks import check_number
from goen.data.feature_files import FEATURES
from goen.data.images.pixel_format import Pixels
from goen.data.input_spec import ImageInputs
from goen.data.inputs import check_batch_size
from goen.errors import DataError, UsageError
from goen.features.precomputed import Precomputed
from goen.gate.engine import EngineOption
from goen.gate.gate import Gate
from goen.gate.prediction import Prediction, ScoreRow
from goen.io.files import printable
from goen.models.placement import find_device
from goen.outputs import Outputs
from goen.progress import bar
from goen.scoring.rows import RowCounts, rows_of_read, unreadable_row
from goen.scoring.shards import Item, LostConnection, Shard, TensorRow, TensorShard
from goen.scoring.sources import Sources

DEFAULT_BATCH_SIZE = 128
FEWEST_FOR_ONNXRUNTIME = 5000
"""Images for which the seconds of converting the network come back, with the gate cifar10-w16."""
_ROWS_OF_FEATURES = 4096
# Shards that are listed ahead: how many inputs there are, if they are no more.
_SHARDS_AHEAD = 32
# Of encoded contents that are held until they are decoded.
_BYTES_AT_ONCE = 1 << 26
# Seconds before a shard is read again.
_WAITS = (1.0, 5.0)

Read = Pixels | TensorRow | str
"""A decoded input, or why it could not be read."""


@dataclass(frozen=True)
class ScoreSettings:
    """How shards are scored.

    Attributes:
        batch_size: images per forward pass; features are scored 4,096 rows at a time.
        threads: of torch in each process; as torch has it if not given.
        device: where the network runs; where it is if not given.
        engine: what runs it; ``auto`` is onnxruntime for many images (5,000), where it is
            installed and predicts as torch does.
    """

    batch_size: int = DEFAULT_BATCH_SIZE
    threads: int | None = None
    device: str | None = None
    engine: EngineOption = "torch"

    def __post_init__(self) -> None:
        check_batch_size(self.batch_size)
        if self.threads is not None:
            check_number("threads", self.threads, whole=True, at_least=1)


class NumberedShard(NamedTuple):
    """A shard and its place among all."""

    number: int
    shard: Shard


class ScoredShard(NamedTuple):
    """A shard with its rows.

    Attributes:
        task: the shard.
        batches: of rows; scored when they are asked for, or before.
        engine: that ran the network.
    """

    task: NumberedShard
    batches: Iterable[list[ScoreRow]]
    engine: str


@dataclass(frozen=True)
class ScoredBatch:
    """Images that were read and scored together, for whoever wants more than their rows.

    Attributes:
        names: of N images: paths or addresses.
        images: what the network saw of them, ``(N, C, H, W)``.
        outputs: of the network.
        prediction: of the gate.
        place: of the first: the number of its shard, and how many were read of it before.
    """

    names: Sequence[str]
    images: Pixels
    outputs: Outputs
    prediction: Prediction
    place: tuple[int, int] = (0, 0)


class Observer(Protocol):
    """Sees the images of every batch where it is scored; what it keeps there is sent back."""

    def watch(self, gate: Gate, batch: ScoredBatch) -> None:
        """See a batch of images that were read."""

    def watch_row(self, row: ScoreRow) -> None:
        """See the row of an input that could not be read; in the process that writes."""

    def take(self) -> Any:
        """What was kept since the last call, to be sent to another process."""

    def merge(self, taken: Any) -> None:
        """Add what ``take`` returned elsewhere."""


Run = Callable[
    [Gate, ScoreSettings, Observer | None, Iterator[NumberedShard]],
    Generator[ScoredShard, None, None],
]
"""Scores shards, in their order; asks for the next only when it has a use for it."""


class Sink(Protocol):
    """Where rows go: ``goen.scoring.sinks.RowSink``, ``goen.scoring.score_folder.ScoreFolder``."""

    def finished(self, task: NumberedShard) -> RowCounts | None:
        """The counts of a shard whose rows are there already; ``None``: it is to be scored."""

    def write(self, task: NumberedShard, batches: Iterable[list[ScoreRow]]) -> RowCounts:
        """Write the rows of a shard; its counts."""

    def close(self, shards: int) -> None:
        """All shards are written: so many."""


@dataclass
class ScoreSummary:
    """What was scored.

    Attributes:
        counts: of all inputs.
        shards: of all.
        kept: shards whose rows were there already.
        first_error: of the first input that could not be read.
        engine: that ran the network.
    """

    counts: RowCounts = field(default_factory=RowCounts)
    shards: int = 0
    kept: int = 0
    first_error: str | None = None
    engine: str = "torch"

    def missing(self, shards: Iterable[Shard], sink: Sink) -> Iterator[NumberedShard]:
        """The shards whose rows are not there; counts the others."""
        for number, shard in enumerate(shards):
            self.shards = number + 1
            task = NumberedShard(number, shard)
            there = sink.finished(task)
            if there is None:
                yield task
            else:
                self.kept += 1
                self.counts += there

    def noted(
        self, scored: ScoredShard, flags: list[bool], observer: Observer | None, shown: Progress
    ) -> Iterator[list[ScoreRow]]:
        """The rows as they are; notes which are flagged and what could not be read."""
        self.engine = scored.engine
        for rows in scored.batches:
            shown.advance(shown.task_ids[0], len(rows))
            flags += [row["is_ood"] is True for row in rows]
            for row in rows:
                if row["is_ood"] is None:
                    self.first_error = self.first_error or str(row["error"])
                    if observer is not None:
                        observer.watch_row(row)
            yield rows


def run_here(
    gate: Gate, settings: ScoreSettings, observer: Observer | None, tasks: Iterator[NumberedShard]
) -> Generator[ScoredShard, None, None]:
    """Score the shards in this process, each batch when its rows are asked for."""
    scorer = ShardScorer(gate, settings, observer)
    for task in tasks:
        yield ScoredShard(task, scorer.rows(task), scorer.gate.engine)


def score(
    gate: Gate,
    sources: Sources,
    sink: Sink,
    settings: ScoreSettings,
    *,
    run: Run = run_here,
    observer: Observer | None = None,
    after: Callable[[Shard, Sequence[bool]], None] | None = None,
) -> ScoreSummary:
    """Score all inputs of the sources into the sink, in constant memory.

    An input that cannot be read gets a row with its error. An image for which the network's outputs
    are not finite is flagged, and its row says so.

    Args:
        gate: scores.
        sources: of the inputs.
        sink: takes the rows.
        settings: of scoring.
        run: scores the shards.
        observer: sees the images and what could not be read.
        after: called after each shard, with whether each of its rows is flagged.

    Raises:
        UsageError: there are no inputs, or the shards cut batches.
    """
    if sources.shard_size < 1 or sources.shard_size % settings.batch_size:
        raise UsageError(
            f"A shard has a multiple of {settings.batch_size} images (the batch size), so that "
            f"batches are those of one process; got {sources.shard_size}."
        )
    shards = sources.shards()
    ahead = list(islice(shards, _SHARDS_AHEAD))
    numbers = [shard.count for shard in ahead]
    known = sum(number or 0 for number in numbers)
    total = None if None in numbers or len(ahead) == _SHARDS_AHEAD else known
    if settings.engine == "auto" and known < FEWEST_FOR_ONNXRUNTIME:
        settings = replace(settings, engine="torch")
    summary = ScoreSummary()
    tasks = summary.missing(chain(ahead, shards), sink)
    with bar() as progress, closing(run(gate, settings, observer, tasks)) as scored:
        progress.add_task("scoring", total=total, status="inputs")
        for done in scored:
            flags: list[bool] = []
            batches = summary.noted(done, flags, observer, progress)
            summary.counts += sink.write(done.task, batches)
            if after is not None:
                after(done.task.shard, flags)
        sink.close(summary.shards)
    return summary


class ShardScorer:
    """Scores shards, one after the other; lives in one process.

    Args:
        gate: scores; it is moved to the device of the settings.
        settings: how.
        observer: sees batches of images.
    """

    def __init__(
        self, gate: Gate, settings: ScoreSettings, observer: Observer | None = None
    ) -> None:
        if settings.device is not None:
            gate.network.to(find_device(settings.device))
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self.gate = gate if settings.engine == gate.engine else gate.with_engine(settings.engine)
        self.observer = observer
        self._images = gate.inputs if isinstance(gate.inputs, ImageInputs) else None
        of_features = isinstance(gate.network, Precomputed)
        self._batch_size = _ROWS_OF_FEATURES if of_features else settings.batch_size

    def rows(self, task: NumberedShard) -> Iterator[list[ScoreRow]]:
        """The rows of a shard, a batch at a time, in the order of its inputs.

        If the connection to its file is lost, it is read again, up to where it was; if it is lost
        again and again, one row stands for the rest.
        """
        done = 0
        try:
            for names, read in self._read_ahead(task.shard):
                found = {n: one for n, one in enumerate(read) if not isinstance(one, str)}
                prediction = None
                if found:
                    scored = [names[n] for n in found]
                    place = (task.number, done)
                    prediction = self._predict(scored, [*found.values()], place)
                done += len(found)
                rows = zip(names, rows_of_read(self.gate, read, prediction), strict=True)
                yield [{"path": printable(name), **row} for name, row in rows]
        except UsageError as error:
            if not isinstance(task.shard, TensorShard):
                raise
            # Tensors of another shape or kind: what remains of the file is one row.
            row = unreadable_row(self.gate, printable(str(error)))
            yield [{"path": printable(task.shard.place), **row}]

    def _predict(
        self, names: Sequence[str], inputs: Sequence[Any], place: tuple[int, int]
    ) -> Prediction:
        if self._images is None:
            return self._predict_tensors(inputs)
        images: Pixels = np.stack(inputs)
        outputs = self.gate.run(torch.from_numpy(images))
        prediction = self.gate.predict_outputs(outputs)
        if self.observer is not None:
            batch = ScoredBatch(names, images, outputs, prediction, place)
            self.observer.watch(self.gate, batch)
        return prediction

    def _predict_tensors(self, rows: Sequence[TensorRow]) -> Prediction:
        parts = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        batch = parts[FEATURES] if [*parts] == [FEATURES] else parts
        if isinstance(self.gate.network, Precomputed):
            return self.gate.predict_outputs(batch)
        return self.gate.predict_outputs(self.gate.outputs(batch))

    def _read_ahead(self, shard: Shard) -> Iterator[tuple[list[str], list[Read]]]:
        """Names and inputs of each batch, decoded; the next is read while one is scored."""
        items = _items(shard)
        pool, ahead = ThreadPoolExecutor(), ThreadPoolExecutor(1)
        try:
            coming = ahead.submit(self._read_batch, items, pool)
            while (batch := coming.result())[0]:
                coming = ahead.submit(self._read_batch, items, pool)
                yield batch
        finally:  # who stops does not wait for what is being read, which a server may hold back
            ahead.shutdown(wait=False, cancel_futures=True)
            pool.shutdown(wait=False, cancel_futures=True)

    def _read_batch(self, items: Iterator[Item], pool: Executor) -> tuple[list[str], list[Read]]:
        """The next batch; it is decoded whenever the encoded contents fill the memory for them."""
        names: list[str] = []
        read: list[Read] = []
        waiting: list[Item] = []
        held = 0
        apply = map if self._images is None else pool.map
        for item in islice(items, self._batch_size):
            names.append(item.name)
            waiting.append(item)
            held += item.bytes_held
            del item  # its content goes before the next is read
            if held >= _BYTES_AT_ONCE:
                read += apply(self._decoded, waiting)
                waiting, held = [], 0
        return names, [*read, *apply(self._decoded, waiting)]

    def _decoded(self, item: Item) -> Read:
        try:
            if self._images is None:
                return item.row()
            return item.read(self._images.size, self._images.pixel_format)
        except DataError as error:
            return printable(str(error))


def _items(shard: Shard) -> Iterator[Item]:
    """The inputs of a shard; if the connection to its file is lost, it is read again, twice."""
    done = 0
    for seconds in (*_WAITS, None):
        try:
            for item in islice(shard.items(), done, None):
                done += 1
                yield item
                del item  # its content goes before the next is read
            return
        except LostConnection as error:
            if seconds is None:
                yield error.item
                return
            time.sleep(seconds)
