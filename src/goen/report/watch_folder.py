"""The folder of ``goen watch``, as the report reads it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from goen.errors import ArtifactError
from goen.functional.ranking import Floats
from goen.io.manifest import Manifest
from goen.monitor import Monitor, MonitorState
from goen.monitor.journal import EVENTS, IMAGES, STATE, read_json_lines
from goen.monitor.saving import load_parts


@dataclass(frozen=True)
class WatchFolder:
    """What the folder of ``goen watch`` holds; arrays of N images, J streams.

    Attributes:
        path: the folder.
        monitor: as it was saved.
        gate: the name of its gate.
        paths: of the images; empty where a row had none.
        labels: the predicted classes.
        flagged: whether the gate flagged them.
        p_values: ``(N, J)``.
        log_e_value: ``(N, J)``, after each image.
        events: events.jsonl.
    """

    path: Path
    monitor: Monitor
    gate: str
    paths: list[str]
    labels: NDArray[np.str_]
    flagged: NDArray[np.bool_]
    p_values: Floats
    log_e_value: Floats
    events: list[Manifest]

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the streams, in the order of the columns."""
        return self.monitor.streams.names

    @property
    def state(self) -> MonitorState:
        """What the monitor knows."""
        return self.monitor.state

    @property
    def begun_after(self) -> int:
        """The images before the present test: those that were seen before the last restart."""
        return self.monitor.streams.restarted_at


def is_watch(folder: Path) -> bool:
    """Whether ``goen watch`` worked in this folder."""
    return (folder / STATE).is_file()


def read_watch(folder: Path) -> WatchFolder:
    """The watch in this folder; rows of a batch that was not finished are left out.

    Raises:
        ArtifactError: something in it is missing or damaged.
    """
    parts, extra = load_parts(folder / STATE)
    monitor = Monitor.of_parts(parts)
    names = monitor.streams.names
    count = monitor.images
    p_values, log_e_value = np.empty((count, len(names))), np.empty((count, len(names)))
    flagged = np.zeros(count, dtype=bool)
    paths, labels = [], []
    try:
        for number, row in zip(range(count), read_json_lines(folder / IMAGES), strict=False):
            p, values = row.part("p"), row.part("log_e_value")
            p_values[number] = [p.number(name) for name in names]
            log_e_value[number] = [values.number(name) for name in names]
            flagged[number] = row.flag("is_ood")
            paths.append(row.text("path") if "path" in row else "")
            labels.append(row.text("label"))
        if len(paths) < count:
            raise ValueError(f"{IMAGES} has {len(paths)} rows for {count} images")
        gate = extra.part("journal").text("gate")
        events = list(read_json_lines(folder / EVENTS))
    except (ValueError, OSError) as error:
        raise ArtifactError(f"{folder} does not hold a whole monitor: {error}.") from error
    return WatchFolder(
        folder, monitor, gate, paths, np.array(labels, dtype=np.str_), flagged, p_values,
        log_e_value, events,
    )  # fmt: skip
