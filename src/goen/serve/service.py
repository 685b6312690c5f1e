"""The service behind the HTTP interface: gates with their queues and monitors, and the threads."""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from logging import getLogger
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TypeVar

import numpy as np

from goen.errors import FitError, GoenError, UsageError
from goen.gate import Gate, Prediction
from goen.io.files import claim_folder, whole_file
from goen.io.stages import alone_in
from goen.io.storage_errors import storage_errors
from goen.monitor.keeping import KeptMonitor, MonitorSettings
from goen.serve.batching import BatchQueue
from goen.serve.metrics import Metrics
from goen.serve.rejection import Rejected
from goen.serve.settings import ServeSettings
from goen.serve.threads import DecodingThreads

_log = getLogger(__name__)
_Result = TypeVar("_Result")
_TICK_SECONDS = 2.0
_KEPT_NAME = re.compile(r"flagged-\d{8}T\d{6}-\d{9}-\d{6}\.(bmp|gif|jpg|png|tif|webp)")
_SUFFIXES = {b"BM": "bmp", b"GIF": "gif", b"\xff\xd8": "jpg", b"\x89PNG": "png", b"RIFF": "webp"}
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
        monitor: its monitor; none if the gate was saved without what a monitor needs, or has too
            few held-out images.
    """

    def __init__(
        self,
        name: str,
        gate: Gate,
        settings: ServeSettings,
        metrics: Metrics,
        threads: DecodingThreads,
    ) -> None:
        self.name, self.gate = name, gate
        self.size = gate.image_size  # or an error: images are what is served
        self.queue = BatchQueue(gate.predict, settings.batches, threads, self._count)
        self.monitor: KeptMonitor | None = None
        self._metrics = metrics
        self._alarm = False
        file = None if settings.state is None else state_file(settings.state, name)
        try:
            guarantee = MonitorSettings(settings.alarm_probability)
            self.monitor = KeptMonitor(gate, guarantee, file, restart=settings.restart)
        except (FitError, UsageError) as error:
            if file is not None and file.exists():
                raise
            _log.warning("The images of the gate %s are not monitored. %s", name, error)
        self._make_gauges()

    def _make_gauges(self) -> None:
        """Numbers that are read when somebody asks for them."""
        name, metrics = self.name, self._metrics
        metrics.engines.labels(name, self.gate.engine).set(1)
        metrics.held.labels(name).set_function(lambda: self.queue.held)
        if (monitor := self.monitor) is not None:
            metrics.flagged_share.labels(name).set_function(lambda: monitor.state.flagged or 0.0)
            metrics.log_e_value.labels(name).set_function(lambda: monitor.state.log_e_value)
            metrics.alarm_line.labels(name).set_function(lambda: monitor.state.alarm_line)
            metrics.alarm.labels(name).set_function(lambda: float(monitor.state.alarm))

    def _count(self, prediction: Prediction, seconds: float) -> None:
        """After each batch, in the thread of its queue."""
        flagged = int(prediction.is_ood.sum())
        self._metrics.images.labels(self.name, "flagged").inc(flagged)
        self._metrics.images.labels(self.name, "passed").inc(len(prediction) - flagged)
        self._metrics.batches.labels(self.name).observe(len(prediction))
        self._metrics.predicting.labels(self.name).observe(seconds)
        if self.monitor is not None:
            self.monitor.add(prediction)

    def save(self) -> None:
        """Log an alarm of the monitor, once, and keep its state."""
        if self.monitor is None:
            return
        state = self.monitor.state
        if state.alarm and not self._alarm:  # said even if the disk is full
            _log.warning("gate %s: %s", self.name, state)
        self._alarm = state.alarm
        self.monitor.save()

    def warm_up(self) -> None:
        """The first pass of each size is slow: memory is allocated, kernels are chosen."""
        for count in self.queue.sizes:
            form = self.gate.pixel_format
            self.gate.predict(np.zeros((count, form.channels, *self.size), form.dtype))


class FlaggedImages:
    """Keeps images under names of its own; nothing of a request becomes part of a name.

    Args:
        folder: new, empty, or that of an earlier service.
        most: images in it; those of earlier services count.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = claim_folder(folder, "kept images"), most
        with storage_errors(folder):
            folder.chmod(0o700)  # photographs of other people
        self._lock = Lock()
        self._number = 0
        self._kept = sorted(p.name for p in folder.iterdir() if _KEPT_NAME.fullmatch(p.name))

    def keep(self, data: bytes) -> None:
        """Write the content of an image file that was decoded."""
        suffix = next((s for magic, s in _SUFFIXES.items() if data.startswith(magic)), "tif")
        with self._lock:
            now = time.time_ns()
            when = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now // 10**9))
            self._number = (self._number + 1) % 10**6
            name = f"flagged-{when}-{now % 10**9:09d}-{self._number:06d}.{suffix}"
            try:
                with whole_file(self.folder / name, private=True) as temporary:
                    temporary.write_bytes(data)
                self._kept.append(name)
                while len(self._kept) > self.most:
                    (self.folder / self._kept.pop(0)).unlink(missing_ok=True)
            except (GoenError, OSError) as error:  # a full disk must not fail the request
                _log.warning("A flagged image was not kept: %s", error)


class Service:
    """Gates behind one address.

    Args:
        gates: by the names under which they are served; the first is the default.
        settings: limits and options.

    Attributes:
        unsaved: names of the gates whose monitor could not be saved when it was last tried.

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
        self.unsaved: set[str] = set()
        keep = self.settings.keep_flagged
        self.kept = None if keep is None else FlaggedImages(keep, self.settings.keep_most)
        self.threads = DecodingThreads()
        self._stopped = Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Load the monitors, warm up, work; at the end answer what was accepted, and save."""
        state = self.settings.state
        with nullcontext() if state is None else alone_in(state, "service"):
            for name, gate in self._given.items():
                self.gates[name] = ServedGate(name, gate, self.settings, self.metrics, self.threads)
            for served in self.gates.values():
                served.warm_up()
            ticking = Thread(target=self._tick, name="goen ticks", daemon=True)
            ticking.start()
            self.ready.set()
            try:
                yield
            finally:
                self.ready.clear()
                self.threads.shutdown()
                for served in self.gates.values():
                    served.queue.stop()
                self._stopped.set()
                ticking.join()
                self._save()

    def _tick(self) -> None:
        while not self._stopped.wait(_TICK_SECONDS):
            self.metrics.activity.tick(sum(g.queue.held for g in self.gates.values()))
            self._save()

    def _save(self) -> None:
        for name, served in self.gates.items():
            known = name in self.unsaved
            try:
                served.save()
                self.unsaved.discard(name)
            except (GoenError, OSError) as error:  # a full disk must not end the service
                self.unsaved.add(name)
                if not known:
                    _log.warning(
                        "The monitor of %s could not count, or was not saved: %s", name, error
                    )
            self.metrics.unsaved.labels(name).set(name in self.unsaved)
            if known and name not in self.unsaved:
                _log.warning("The monitor of %s is saved again.", name)

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
