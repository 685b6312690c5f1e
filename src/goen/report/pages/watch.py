"""The report of ``goen watch``: log e-values over time, and what moved."""

import json
import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from goen.data.images.decoding import read_image
from goen.data.imageset import Pixels
from goen.errors import ArtifactError, DataError
from goen.functional.ranking import Floats
from goen.io.manifest import Manifest
from goen.monitor import Monitor, MonitorState
from goen.monitor.journal import EVENTS, IMAGES, STATE, read_json_lines
from goen.monitor.saving import load_parts
from goen.monitor.state import CLASS, SCORE, change
from goen.report.blocks import Details, Drawing, FactTable, Page, PageBlock, Paragraph, Section
from goen.report.figures.watch import HIGHEST, e_value_lines, flagged_band, image_grid, p_value_map
from goen.report.run_folder import file_hashes
from goen.report.table import Cell, Row, Table, share_cell
from goen.report.texts import slug, text_of

_text = partial(text_of, "watch.html")
_BINS = 10
_MOST_WINDOWS, _LEAST_WINDOW = 30, 100
_EXAMPLES = 12
_MOST_CLASSES = 30
_THUMBNAIL = (96, 96)


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


def watch_page(watch: WatchFolder) -> Page:
    """The page of ``goen watch``."""
    title = f"Monitor of {watch.gate}: {'ALARM' if watch.state.alarm else 'no alarm'}"
    summary: list[PageBlock] = [
        Paragraph(_text("lead", state=watch.state), "warn" if watch.state.alarm else "lead"),
        str(watch.monitor.guarantee),
        _text("null_hypothesis"),
    ]
    if not len(watch):
        return Page(title, summary, [_provenance(watch)])
    sections = [
        Section("Log e-values", _log_e_values(watch)),
        Section("What moved", [_streams_table(watch)]),
        Section("P-values", _p_values(watch)),
        Section("Share flagged", _flagged(watch)),
        Section("Classes", _classes(watch)),
        Section("Images", _images(watch)),
        _provenance(watch),
    ]
    return Page(title, summary, sections)


def _log_e_values(watch: WatchFolder) -> list[PageBlock]:
    state = watch.state
    log_e_values = dict(zip(watch.names, watch.log_e_value.T, strict=True))
    figure = e_value_lines(log_e_values, state.alarm_line, state.since, state.alarm_at)
    ends = "; ".join(f"{name} {values[-1]:.1f}" for name, values in log_e_values.items())
    alt = f"Log e-value of each stream over {len(watch):,} images, at the end: {ends}."
    edge = HIGHEST * state.alarm_line
    caption = _text(
        "e_values",
        state=state,
        begun_after=watch.begun_after,
        edge=edge if watch.log_e_value.max() > edge else None,
    )
    return [[Drawing("e-values", figure, alt, caption, wide=True)]]


def _streams_table(watch: WatchFolder) -> Table:
    rows, present = [], watch.log_e_value[watch.begun_after :]
    for number, (name, stream) in enumerate(watch.state.streams.items()):
        found = stream.change_point
        cells = [
            Cell(stream.log_e_value, ".2f"),
            Cell(float(present[:, number].max(initial=stream.log_e_value)), ".2f"),
        ]
        if found is None:
            cells += [Cell(text="–")] * 3
        else:
            cells += [Cell(found.at, ",.0f"), Cell(found.since, ",.0f")]
            cells.append(Cell(text=change(name, found)))
        rows.append(Row(name, tuple(cells)))
    columns = ("log e-value", "highest", "moved: found at image", "since about image", "change")
    notes = (
        f"A stream has moved where its log e-value has reached {watch.state.alarm_line:.2f}. The "
        "guarantee holds for all streams together.",
    )
    return Table("streams", "Streams", columns, tuple(rows), notes)


def window_size(images: int) -> int:
    """A round number of images, so that there are at most 30 windows.

    Example:
        >>> window_size(400), window_size(10_000), window_size(1_000_000)
        (100, 500, 50000)
    """
    size = _LEAST_WINDOW
    steps = (2.5, 2, 2)  # 100, 250, 500, 1000, ...
    number = 0
    while images > size * _MOST_WINDOWS:
        size = int(size * steps[number % 3])
        number += 1
    return size


def _windows(watch: WatchFolder) -> NDArray[np.int64]:
    """The first image of each window, counted from 0, and the end of the last."""
    return np.append(np.arange(0, len(watch), window_size(len(watch))), len(watch))


def _p_values(watch: WatchFolder) -> list[PageBlock]:
    edges = _windows(watch)
    moved = [name for name in watch.state.moved if name != SCORE]
    drawings = []
    for name in (SCORE, *moved):
        values = watch.p_values[:, watch.names.index(name)]
        shares = np.stack(
            [
                np.histogram(values[a:b], _BINS, range=(0, 1))[0] * _BINS / (b - a)
                for a, b in pairwise(edges)
            ]
        )
        title = f"P-values of {'the score' if name == SCORE else name}"
        alt = (
            f"{title} by window of {window_size(len(watch)):,} images. In the last window, from 0 "
            f"to 1 in tenths, times uniform: {', '.join(f'{s:.2g}' for s in shares[-1])}."
        )
        figure = p_value_map(title, shares, edges.astype(np.float64))
        drawings.append(Drawing(f"p-values-{slug(name)}", figure, alt))
    return [_text("p_values"), drawings]


def _flagged(watch: WatchFolder) -> list[PageBlock]:
    edges = _windows(watch)
    shares, ends = [], []
    for a, b in pairwise(edges):
        part = watch.flagged[a:b]
        shares.append(part.mean())
        ends.append(binomtest(int(part.sum()), len(part)).proportion_ci())
    low, high = np.array(ends).T
    centres = (edges[:-1] + edges[1:]) / 2
    figure = flagged_band(centres, np.array(shares), low, high, watch.state.since)
    alt = (
        f"Share flagged by window of {window_size(len(watch)):,} images: "
        f"{', '.join(f'{s:.1%}' for s in shares)}."
    )
    caption = _text("flagged", windows=len(shares), since=watch.state.since)
    return [[Drawing("flagged", figure, alt, caption)]]


def _classes(watch: WatchFolder) -> list[PageBlock]:
    """The share of each predicted class among the held-out images, before the change and since."""
    since, gate = watch.state.since, watch.monitor.gate
    names = list(gate.classes) if gate is not None else np.unique(watch.labels).tolist()
    title, notes = "Predicted classes", []
    parts = {} if CLASS not in watch.names else {"held-out images": _held_out_labels(watch)}
    if since is None:
        parts["share"] = watch.labels
    else:
        if since > 1:
            parts["before"] = watch.labels[: since - 1]
        parts["since"] = watch.labels[since - 1 :]
        title += f", before and since image {since:,}"
    if len(names) > _MOST_CLASSES:
        names.sort(key=lambda name: -float(np.ptp([np.mean(p == name) for p in parts.values()])))
        notes.append(f"{_MOST_CLASSES} of {len(names)} classes, those whose share changed most.")
        names = names[:_MOST_CLASSES]
    if CLASS not in watch.names:
        notes.append("This monitor does not follow the predicted class.")
    rows = tuple(
        Row(name, tuple(share_cell(int((p == name).sum()), len(p)) for p in parts.values()))
        for name in names
    )
    return [Table("classes", title, tuple(parts), rows, tuple(notes))]


def _held_out_labels(watch: WatchFolder) -> NDArray[np.str_]:
    """The predicted classes of the held-out images: of all that were counted, the others."""
    assert watch.monitor.gate is not None
    seen = watch.monitor.streams.counts[watch.names.index(CLASS)]
    names = np.array(watch.monitor.gate.classes)[seen.values.astype(np.int64)]
    watched = np.array([np.sum(watch.labels == name) for name in names], dtype=np.int64)
    return np.repeat(names, np.maximum(seen.counts - watched, 0))


def _images(watch: WatchFolder) -> list[PageBlock]:
    """The images that raised the e-value of the present test most."""
    state, begun = watch.state, watch.begun_after
    if begun == len(watch):
        return ["No images have come since the new test began."]
    name = next(iter(state.moved), SCORE)
    stream = watch.names.index(name)
    before = math.log(watch.monitor.streams.streams[stream].weight)
    gains = np.diff(watch.log_e_value[begun:, stream], prepend=before)
    first = begun if state.since is None else state.since - 1
    last = len(watch) if state.alarm_at is None else state.alarm_at
    order = np.argsort(-gains[first - begun : last - begun], kind="stable")
    chosen = first + order[:_EXAMPLES]
    p_values = watch.p_values[:, stream]
    cards = [(f"{n + 1:,}: p = {p_values[n]:.2g}", _thumbnail(watch.paths[n])) for n in chosen]
    listed = ", ".join(f"{n + 1:,} ({watch.paths[n] or 'no path'})" for n in chosen)
    stream_title = "the score" if name == SCORE else name
    text = _text("images", stream=stream_title, alarm=state.alarm)
    alt = f"The {len(chosen)} images that raised the e-value most: numbers {listed}."
    rows = [
        (f"{n + 1:,}", f"{p_values[n]:.2g}", str(watch.labels[n]), watch.paths[n]) for n in chosen
    ]
    return [
        text,
        [Drawing("images", image_grid(cards), alt)],
        FactTable(("image", "p-value", "predicted class", "path"), rows),
    ]


def _thumbnail(path: str) -> Pixels | None:
    try:
        return read_image(Path(path), _THUMBNAIL) if path else None
    except (DataError, ValueError):  # ValueError: a name with a NUL byte
        return None


def _provenance(watch: WatchFolder) -> Section:
    streams = watch.monitor.streams
    rows = [
        ("gate", watch.gate),
        ("images", f"{len(watch):,}"),
        ("seed", str(streams.seed)),
        ("streams and their shares", ", ".join(f"{s.name} {s.weight:g}" for s in streams.streams)),
        *file_hashes(watch.path, (STATE, IMAGES, EVENTS)),
    ]
    events = "\n".join(json.dumps(event.content) for event in watch.events[-200:])
    facts = FactTable(("what", "value"), rows)
    return Section("Provenance", [_text("provenance"), facts, Details("Events", events)])
