"""The service behind the HTTP interface: gates with their queues and monitors, and the threads."""

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from logging import getLogger
from pathlib import Path
from threading import Event, Thread
from typing import TypeVar

import numpy as np

from goen.data.imageset import Pixels
from goen.errors import FitError, GoenError, UsageError
from goen.gate import Gate, Prediction
from goen.runs.stages import alone_in
from goen.serve.batching import BatchQueue, ScoredImage, Slot
from goen.serve.flagged_pictures import FlaggedPictures
from goen.serve.metrics import Metrics
from goen.serve.rejection import Rejected
from goen.serve.settings import ServeSettings
from goen.serve.uploads import Upload, decode_upload
from goen.serve.watching import WatchedStream

_log = getLogger(__name__)
_Result = TypeVar("_Result")
_TICK_SECONDS = 2.0
GATE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names under which gates are served: parts of addresses and of file names."""


def state_file(folder: Path, name: str) -> Path:
    """Of the monitor of the gate that is served under this name."""
    return folder / f"{name}.monitor.safetensors"


class ServedGate:
    """One gate of a service.

    Attributes:
        name: in addresses.
        gate: scores.
        size: (height, width) of its images.
        queue: gathers its images.
        stream: its monitor; none if the gate was saved without what a monitor needs, or has too
            few held-out images.
    """

    def __init__(self, name: str, gate: Gate, settings: ServeSettings, metrics: Metrics) -> None:
        self.name, self.gate = name, gate
        self.size = gate.image_size  # or an error: pictures are what is served
        self.queue = BatchQueue(gate.predict, settings.batches, self._count)
        self.stream: WatchedStream | None = None
        self._metrics = metrics
        self._alarm = False
        file = None if settings.state is None else state_file(settings.state, name)
        try:
            self.stream = WatchedStream(gate, settings.false_alarm, file, restart=settings.restart)
        except (FitError, UsageError) as error:
            if file is not None and file.exists():
                raise
            _log.warning("The images of the gate %s are not monitored. %s", name, error)
        self._make_gauges()

    def _make_gauges(self) -> None:
        self._metrics.engines.labels(self.name, self.gate.engine).set(1)
        gauge = self._metrics.gauge
        held = "Images accepted and not yet answered."
        gauge("goen_queue_images", held, self.name, lambda: self.queue.held)
        if (stream := self.stream) is None:
            return
        share = "Share flagged among the last 1,000 images."
        gauge("goen_flagged_share", share, self.name, lambda: stream.state.flagged or 0.0)
        evidence = "Largest log evidence of the monitor."
        gauge("goen_log_evidence", evidence, self.name, lambda: stream.state.log_evidence)
        line = "Log evidence at which the alarm is raised."
        gauge("goen_alarm_line", line, self.name, lambda: stream.state.alarm_line)
        gauge("goen_alarm", "1 after an alarm.", self.name, lambda: float(stream.state.alarm))

    def _count(self, prediction: Prediction, seconds: float) -> None:
        """After each batch, in the thread of its queue."""
        flagged = int(prediction.is_ood.sum())
        self._metrics.images.labels(self.name, "flagged").inc(flagged)
        self._metrics.images.labels(self.name, "passed").inc(len(prediction) - flagged)
        self._metrics.batches.labels(self.name).observe(len(prediction))
        self._metrics.predicting.labels(self.name).observe(seconds)
        if self.stream is not None:
            self.stream.add(prediction)

    def warn_of_alarm(self) -> None:
        """Log an alarm of the monitor, once."""
        if self.stream is not None and not self._alarm:
            state = self.stream.state
            self._alarm = state.alarm
            if state.alarm:
                _log.warning("gate %s: %s", self.name, state)

    def warm_up(self) -> None:
        """The first pass of each size is slow: memory is allocated, kernels are chosen."""
        for count in self.queue.sizes:
            form = self.gate.picture_form
            self.gate.predict(np.zeros((count, form.channels, *self.size), form.dtype))


class Service:
    """Gates behind one address.

    Args:
        gates: by the names under which they are served; the first is the default.
        settings: limits and options.

    Raises:
        UsageError: no gate, a name that cannot be part of an address, or another service's state.
    """

    def __init__(self, gates: Mapping[str, Gate], settings: ServeSettings | None = None) -> None:
        if not gates:
            raise UsageError("Name at least one gate to serve.")
        for name in gates:
            if not GATE_NAME.fullmatch(name):
                raise UsageError(
                    f"A gate is served under a name of letters, digits, '.', '_' and '-', got "
                    f"{name!r}. Give it one: NAME=GATE."
                )
        self.settings = settings or ServeSettings()
        self.metrics = Metrics()
        self._given = gates
        self.gates: dict[str, ServedGate] = {}
        self.ready = Event()
        keep = self.settings.keep_flagged
        self.kept = None if keep is None else FlaggedPictures(keep, self.settings.keep_most)
        self.pool = ThreadPoolExecutor(os.cpu_count() or 1, "goen decoding")
        self._stopped = Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Load the monitors, warm up, work; at the end answer what was accepted, and save."""
        state = self.settings.state
        with nullcontext() if state is None else alone_in(state):
            for name, gate in self._given.items():
                self.gates[name] = ServedGate(name, gate, self.settings, self.metrics)
            for served in self.gates.values():
                served.warm_up()
                served.queue.start()
            ticking = Thread(target=self._tick, name="goen ticks", daemon=True)
            ticking.start()
            self.ready.set()
            try:
                yield
            finally:
                self.ready.clear()
                self.pool.shutdown(wait=True)
                for served in self.gates.values():
                    served.queue.stop()
                self._stopped.set()
                ticking.join()
                self._save()

    def _tick(self) -> None:
        while not self._stopped.wait(_TICK_SECONDS):
            self.metrics.activity.tick(sum(g.queue.held for g in self.gates.values()))
            for served in self.gates.values():
                try:
                    served.warn_of_alarm()
                except GoenError as error:  # the other gates, and later images, go on
                    _log.warning("The monitor of %s could not count: %s", served.name, error)
            self._save()

    def _save(self) -> None:
        for served in self.gates.values():
            if served.stream is not None:
                try:
                    served.stream.save()
                except (GoenError, OSError) as error:  # a full disk must not end the service
                    _log.warning("The monitor of %s was not saved: %s", served.name, error)

    def find(self, name: str | None) -> ServedGate:
        """The gate of this name; the first if no name is given.

        Raises:
            Rejected: there is none.
        """
        if name is None:
            return next(iter(self.gates.values()))
        if name not in self.gates:
            raise Rejected("not_found", f"No gate of that name. Served: {', '.join(self.gates)}.")
        return self.gates[name]

    async def in_thread(self, work: Callable[[], _Result]) -> _Result:
        """What this returns; the loop that answers requests does not wait for it."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    async def score_uploads(
        self, served: ServedGate, uploads: Sequence[Upload]
    ) -> "list[tuple[Pixels, ScoredImage] | Rejected]":
        """What the network saw of each picture and what the gate found, or why it was not scored.

        Raises:
            Rejected: the queue is full.
        """
        size, limits = served.size, self.settings.limits
        form = served.gate.picture_form
        makers = [partial(decode_upload, upload, size, limits, form) for upload in uploads]
        return await self._score(served, makers)

    async def score_images(
        self, served: ServedGate, images: Sequence[Callable[[], Pixels]]
    ) -> list[ScoredImage]:
        """What the gate finds in images that these functions return, ``(3, H, W)`` each."""
        found = []
        for scored in await self._score(served, images):
            if isinstance(scored, Rejected):
                raise scored
            found.append(scored[1])
        return found

    async def _score(
        self, served: ServedGate, makers: Sequence[Callable[[], Pixels]]
    ) -> "list[tuple[Pixels, ScoredImage] | Rejected]":
        slots = served.queue.reserve(len(makers))
        try:
            decoded = await asyncio.gather(
                *(
                    self.in_thread(partial(_decode_into, slot, make))
                    for slot, make in zip(slots, makers, strict=True)
                )
            )
        finally:
            for slot in slots:
                slot.leave()
        found: list[tuple[Pixels, ScoredImage] | Rejected] = []
        for one in decoded:
            if isinstance(one, Rejected):
                found.append(one)
            else:
                image, future = one
                found.append((image, await asyncio.wrap_future(future)))
        return found

    def keep(self, is_ood: bool, upload: Upload | Pixels) -> str | None:
        """Keep the picture if it was flagged and the service keeps such; its file's name."""
        if self.kept is None or not is_ood:
            return None
        try:
            if isinstance(upload, Upload):
                return self.kept.keep(upload)
            return self.kept.keep_image(upload)
        except (GoenError, OSError) as error:  # a full disk must not fail the request
            _log.warning("A flagged picture was not kept: %s", error)
            return None


def _decode_into(
    slot: Slot, make: Callable[[], Pixels]
) -> "tuple[Pixels, Future[ScoredImage]] | Rejected":
    """Decode an image and put it into its place in the queue."""
    try:
        image = make()
    except Rejected as rejected:
        slot.leave()
        return rejected
    return image, slot.fill(image)
