"""Score shards in many processes, on this machine or a cluster, with Ray.

A worker is an actor that holds the gate and scores one shard after the other. Rows come back to the
process that asked for them, which alone writes files, so workers need no folder in common. A worker
that dies is started again by Ray, with its shard: what is lost is work, never rows.

Actors and not Ray Data (2.60, measured with a shard that ends its process): ``flat_map`` over shard
descriptions tries that shard for ever, 37 times in three minutes; with ``max_task_retries=2`` it
ends with an ``ActorUnavailableError`` that names the actor and no shard. And ``from_items`` takes
the list of all shards at once, so that the names of all files would be in memory.
"""

import builtins
import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from logging import getLogger
from tempfile import TemporaryDirectory, gettempdir
from types import ModuleType
from typing import Any, NamedTuple

from goen.errors import ExtraMissing, GoenError, UsageError
from goen.gate.gate import Gate
from goen.gate.prediction import ScoreRow
from goen.io.files import printable
from goen.scoring.pipeline import (
    NumberedShard,
    Observer,
    ScoredShard,
    ScoreSettings,
    ShardScorer,
)

_log = getLogger(__name__)
_LOOPBACK = "127.0.0.1"
_QUIET = {"log_to_driver": False, "logging_level": "ERROR"}
# After the first try: what kills a worker three times is in the shard: an image, a lack of memory.
_RETRIES = 2
# Shards of each worker that may wait for one before them, whose rows are written first.
_WAITING = 4
# Rows on their way: a shard of 4,096 images has less than 2 MB. Ray takes a third of the memory.
_OBJECT_STORE = 1 << 28
# Of the folder above Ray's, in bytes: the path of a socket has at most 107.
_LONGEST_PLACE = 12


@dataclass(frozen=True)
class RayWorkers:
    """The processes that score; a ``run`` for ``goen.scoring.pipeline.score``.

    Attributes:
        count: of workers.
        cluster: the address of a Ray cluster; a Ray of this machine is started if not given.

    Raises:
        ExtraMissing: Ray is not installed.
    """

    count: int
    cluster: str | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"There should be 1 worker or more, got {self.count}.")
        _import_ray()

    def __call__(
        self,
        gate: Gate,
        settings: ScoreSettings,
        observer: Observer | None,
        tasks: Iterator[NumberedShard],
    ) -> Generator[ScoredShard, None, None]:
        """Score the shards, in their order."""
        first = next(tasks, None)
        if first is None:
            return  # all shards are there: no worker is needed
        ray = _import_ray()
        threads = settings.threads or 1
        with connected(self, threads) as own:
            gpus = int((settings.device or "").startswith("cuda"))
            if gpus > ray.cluster_resources().get("GPU", 0):
                raise UsageError(f"Ray finds no GPU for --device {settings.device}.")
            needs = {"num_cpus": threads, "num_gpus": gpus}
            actor = ray.remote(max_restarts=-1, max_task_retries=_RETRIES, **needs)(_Worker)
            made = [actor.remote() for _ in range(self.count)]
            try:
                # In a list, or Ray would unpickle the gate for every shard.
                shared = [ray.put((gate, settings, observer))]
                for task, result in _scored(ray, made, chain([first], tasks), shared):
                    if observer is not None:
                        observer.merge(result.observed)
                    yield ScoredShard(task, [result.rows], result.engine)
            finally:
                # Of one that is killed while it gets ready, Ray prints a line between the rows.
                for one in [] if own else made:
                    ray.kill(one)


class _Result(NamedTuple):
    """What comes back from a worker."""

    rows: list[ScoreRow]
    observed: Any
    engine: str


class _Worker:
    """A ``ShardScorer`` in a process of Ray; made anew where one is started again."""

    def __init__(self) -> None:
        self._scorer: ShardScorer | None = None

    def load(self, shared: list[Any]) -> None:
        """Get the gate and the settings ready."""
        if self._scorer is None:
            self._scorer = ShardScorer(*_import_ray().get(shared[0]))

    def score(self, task: NumberedShard, shared: list[Any]) -> _Result:
        """See ``ShardScorer``."""
        self.load(shared)
        scorer = self._scorer
        assert scorer is not None
        rows = [row for batch in scorer.rows(task) for row in batch]
        observed = None if scorer.observer is None else scorer.observer.take()
        return _Result(rows, observed, scorer.gate.engine)


def _scored(
    ray: ModuleType, workers: list[Any], tasks: Iterator[NumberedShard], shared: list[Any]
) -> Iterator[tuple[NumberedShard, _Result]]:
    """Every worker gets a shard when it is ready, and the next when it has finished one.

    Results come in the order of the shards, so a few wait for one before them. A worker that the
    cluster has no room for never gets any.
    """
    busy: dict[Any, tuple[Any, NumberedShard | None]]
    busy = {worker.load.remote(shared): (worker, None) for worker in workers}
    idle: list[Any] = []
    order: deque[NumberedShard] = deque()
    done: dict[int, _Result] = {}
    task = next(tasks, None)
    while task is not None or order:
        while task is not None and idle and len(order) < _WAITING * len(workers):
            worker = idle.pop()
            busy[worker.score.remote(task, shared)] = (worker, task)
            order.append(task)
            task = next(tasks, None)
        (ready,), _ = ray.wait(list(busy), num_returns=1)
        worker, finished = busy.pop(ready)
        result = _result(ray, ready, finished)
        idle.append(worker)
        if finished is not None:
            done[finished.number] = result
        while order and order[0].number in done:
            first = order.popleft()
            yield first, done.pop(first.number)


def _result(ray: ModuleType, done: Any, task: NumberedShard | None) -> Any:
    try:
        return ray.get(done)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, GoenError):
            raise cause from error
        what = "Starting a worker"
        if task is not None:  # the shard, with its first input
            what = f"Scoring shard {task.number} ({printable(repr(task.shard)[:200])})"
        lines = str(cause or error).strip().splitlines()
        reason = lines[-1 if cause is None else 0].strip() if lines else type(error).__name__
        raise GoenError(
            f"{what} failed: {reason}. Finished shards are kept in a folder of shards, where the "
            "same command continues."
        ) from error


@contextmanager
def connected(workers: RayWorkers, threads: int = 1) -> Iterator[bool]:
    """A connection to Ray: the one that is there, to a cluster, or to one for this job alone.

    Yields whether it is for this job alone, so that its workers end with it.

    Args:
        workers: for whom there should be room.
        threads: of each.
    """
    ray = _import_ray()
    if ray.is_initialized():
        yield False
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    stop, own_print = signal.getsignal(signal.SIGTERM), builtins.print
    with _private_folder() as folder:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its own future, on every start
            if workers.cluster is not None:
                ray.init(address=workers.cluster, **_QUIET)
            else:
                _start_here(ray, workers.count * threads, folder)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, stop)  # Ray has put its own there
        try:
            yield workers.cluster is None
        finally:
            ray.shutdown()
            builtins.print = own_print  # Ray may have put its own there, too


def _private_folder() -> TemporaryDirectory[str]:
    """For the folder of Ray, to which Ray gives everybody the right to write."""
    place = os.environ.get("RAY_TMPDIR", gettempdir())
    if len(os.fsencode(place)) > _LONGEST_PLACE:
        place = "/tmp"
    return TemporaryDirectory(prefix="goen-ray-", dir=place, ignore_cleanup_errors=True)


def _start_here(ray: ModuleType, cores: int, folder: str) -> None:
    """Start a Ray to which only this machine can connect, with its own folder in this one."""
    # Ray takes an address of the network in place of a loopback address, unless it is told that
    # there are no clusters; this is read when Ray is imported, and again by its own processes.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
    ray.init(
        address="local",
        num_cpus=cores,  # with fewer than the workers need, some would wait for ever
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE,
        _node_ip_address=_LOOPBACK,
        _temp_dir=f"{folder}/r",
        **_QUIET,
    )
    address = ray.util.get_node_ip_address()
    if address != _LOOPBACK:
        _log.warning("Ray listens at %s, where other machines may reach it.", address)


def _import_ray() -> ModuleType:
    try:
        import ray
    except ImportError as error:
        raise ExtraMissing(
            "Several workers need Ray: pip install 'goen[ray]'. Without --workers this process "
            "scores alone, and needs none."
        ) from error
    module: ModuleType = ray
    return module
