"""The monitor on real images: python recipes/monitor_cifar10.py --data-dir DATA

CIFAR-10's test images in random orders through the bundled gate; from image 2,000 on, something
changes. Every image passes through the network once; the orders reuse its scores. Compares
`goen.Monitor` with a CUSUM on the share flagged and with Kolmogorov-Smirnov tests in a window, and
writes the streams of scores, so that recipes/monitor_peers.py can run detectors of other libraries
on the same streams. Writes results/monitor/cifar10.jsonl.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from paired import read_lines
from safetensors.numpy import load_file, save_file
from scipy.stats import binomtest, ks_2samp

import goen
from goen.data import ImageSet, Protocol, protocol
from goen.data.transforms.corruptions import SEVERITIES, corrupt
from goen.gate import Gate
from goen.io.provenance import hardware, versions
from goen.io.stages import Stages
from goen.monitor import Monitor
from goen.monitor.inputs import CLASS, SCORE, held_out_values
from goen.report.table import Cell, Row, Table

OUT = Path(__file__).parents[1] / "results" / "monitor" / "cifar10.jsonl"
STREAMS = "monitor-cifar10-streams.npz"
CHANGE = 2000
AFTER = 6000
CORRUPTIONS = ("gaussian_noise", "defocus_blur", "jpeg_compression")
CORRUPTED, PER_SEVERITY = 2500, 500
AFTER_CLASS = 1500  # one class ten times as frequent: then its images are used up
OOD = ("svhn", "cifar100")
SHARES = (0.01, 0.05, 0.2)
ALARM_PROBABILITY = 0.01
FLAGGED = "flagged"

Floats = NDArray[np.float64]
Scores = Mapping[str, Floats]  # by stream, and FLAGGED


@dataclass(frozen=True)
class Line:
    """One change, one detector.

    Attributes:
        change: what happens from image 2,000 on.
        detector: which.
        orders: how many random orders.
        early: how many had an alarm before the change; without a change, at any time.
        found: how many of the others had an alarm after it.
        share: that share.
        low: lower end of its 95 % interval.
        high: upper end.
        delay: median number of images from the change to the alarm over orders without an early
            one; ``None`` if half of them or more have none.
        delay_low: lower quartile.
        delay_high: upper quartile, ``None`` as above.
        first: the stream that raised most of the alarms.
        off_by: median distance of the estimated from the true change, in images.
    """

    change: str
    detector: str
    orders: int
    early: int
    found: int
    share: float
    low: float
    high: float
    delay: float | None = None
    delay_low: float | None = None
    delay_high: float | None = None
    first: str = ""
    off_by: float | None = None


# -- scores ----------------------------------------------------------------------------------


def scored(gate: Gate, images: ImageSet, stages: Stages, name: str) -> dict[str, Floats]:
    """The numbers that a monitor follows, of each image, and whether it is flagged."""

    def make(result: Path, _: Path) -> None:
        prediction = gate.predict(images)
        arrays = {SCORE: prediction.score, **prediction.cues, CLASS: prediction.label}
        arrays |= {FLAGGED: prediction.is_ood}
        save_file({k: np.ascontiguousarray(v, np.float64) for k, v in arrays.items()},
                  result / "scores.safetensors")  # fmt: skip

    inputs = {"gate": str(gate.metadata["network"]), "images": images.fingerprint, "revision": 1}
    return load_file(stages.run("monitor-scores", inputs, make, about=name) / "scores.safetensors")


def all_scores(gate: Gate, p: Protocol, stages: Stages) -> dict[str, dict[str, Floats]]:
    """By set: the test images, OOD sets, and the last test images under each corruption."""
    scores = {"test": scored(gate, p.test, stages, "test")}
    for name in OOD:
        images = p.evaluation[name].images
        taken = images.take(np.arange(min(len(images), 4000)))
        scores[name] = scored(gate, taken, stages, name)
    last = p.test.take(np.arange(len(p.test) - CORRUPTED, len(p.test)))
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            pixels = corrupt(last.read(), name, severity)
            images = ImageSet(f"{name}-{severity}", pixels, last.labels, last.classes)
            scores[images.name] = scored(gate, images, stages, images.name)
    return scores


# -- streams ---------------------------------------------------------------------------------


def rows_of(scores: Scores, rows: NDArray[np.int64]) -> dict[str, Floats]:
    return {name: values[rows] for name, values in scores.items()}


def joined(*parts: Scores) -> dict[str, Floats]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


Draw = Callable[[np.random.Generator], dict[str, Floats]]


def mixed(scores: Mapping[str, Scores], name: str, share: float, after: int = AFTER) -> Draw:
    """Test images, of which a share is replaced by images of another set from image 2,000 on."""

    def draw(rng: np.random.Generator) -> dict[str, Floats]:
        stream = rows_of(
            scores["test"], rng.permutation(len(scores["test"][SCORE]))[: CHANGE + after]
        )
        later = CHANGE + np.flatnonzero(rng.random(after) < share)
        other = rng.permutation(len(scores[name][SCORE]))[: len(later)]
        for key, values in stream.items():
            values[later] = scores[name][key][other]
        return stream

    return draw


def changes(scores: Mapping[str, Scores], truth: NDArray[np.int64]) -> dict[str, Draw]:
    """A stream for a random order, by the name of its change."""
    test = scores["test"]
    count = len(truth)

    def nothing(rng: np.random.Generator) -> dict[str, Floats]:
        return rows_of(test, rng.permutation(count))

    def growing(name: str) -> Draw:
        def draw(rng: np.random.Generator) -> dict[str, Floats]:
            before = rows_of(test, rng.permutation(count - CORRUPTED)[:CHANGE])
            order = rng.permutation(CORRUPTED).reshape(len(SEVERITIES), PER_SEVERITY)
            after = [
                rows_of(scores[f"{name}-{severity}"], rows)
                for severity, rows in zip(SEVERITIES, order, strict=True)
            ]
            return joined(before, *after)

        return draw

    def frequent(rng: np.random.Generator) -> dict[str, Floats]:
        order = rng.permutation(count)
        rest = order[CHANGE:]
        weights = np.where(truth[rest] == rng.integers(10), 10.0, 1.0)
        # The order of exponential times divided by the weights: drawn without replacement.
        later = rest[np.argsort(rng.exponential(size=len(rest)) / weights)[:AFTER_CLASS]]
        return rows_of(test, np.concatenate([order[:CHANGE], later]))

    found: dict[str, Draw] = {"nothing": nothing}
    for name in OOD:
        for share in SHARES:
            found[f"{share:.0%} {name}"] = mixed(scores, name, share)
    for name in CORRUPTIONS:
        found[name.replace("_", " ")] = growing(name)
    return found | {"one class ten times as frequent": frequent}


# -- detectors -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alarm:
    """The image at which a detector raised an alarm, and what it says about it."""

    at: int | None
    first: str = ""
    since: int | None = None


def monitored(monitor: Monitor, stream: Scores) -> Alarm:
    """The first alarm of a monitor."""
    values = {name: stream[name] for name in monitor.streams.names}
    for start in range(0, len(stream[SCORE]), 512):
        part = {name: v[start : start + 512] for name, v in values.items()}
        state = monitor.add(part)
        if state.alarm:
            return Alarm(state.alarm_at, next(iter(state.moved)), state.since)
    return Alarm(None)


def cusum(flags: Floats, usual: float, unusual: float) -> Floats:
    """Page's statistic for a share flagged that rises, over the first axis."""
    gains = np.where(
        flags > 0, np.log(unusual / usual), np.log((1 - unusual) / (1 - usual))
    ).cumsum(axis=0)
    least = np.minimum.accumulate(np.concatenate([np.zeros_like(gains[:1]), gains]))
    return np.asarray(gains - least[:-1])


def cusum_line(usual: float, unusual: float, images: int = 10_000, runs: int = 4000) -> float:
    """The line that 1 % of runs without a change cross, if the share flagged is what was asked."""
    rng = np.random.default_rng(0)
    tops = [
        cusum(rng.random((images, 200)) < usual, usual, unusual).max(axis=0)
        for _ in range(runs // 200)
    ]
    return float(np.quantile(np.concatenate(tops), 1 - ALARM_PROBABILITY))


def ks_window(scores: Floats, held_out: Floats, level: float) -> Alarm:
    """Two-sample tests of the last 500 scores against the held-out ones, every 100 images."""
    for stop in range(500, len(scores) + 1, 100):
        window = scores[stop - 500 : stop]
        if ks_2samp(window, held_out, method="asymp").pvalue <= level:
            return Alarm(stop)
    return Alarm(None)


def line(change: str, detector: str, alarms: Sequence[Alarm]) -> Line:
    """The shares and delays of one detector."""
    times = np.array([np.inf if alarm.at is None else alarm.at for alarm in alarms])
    quiet = change == "nothing"
    is_early = np.isfinite(times) if quiet else times <= CHANGE
    others = [alarm for alarm, early in zip(alarms, is_early, strict=True) if not early]
    delays = times[~is_early] - CHANGE
    found = int(np.isfinite(delays).sum())
    counted = (int(is_early.sum()), len(alarms)) if quiet else (found, max(len(others), 1))
    low, high = binomtest(*counted).proportion_ci()

    def quantile(q: float) -> float | None:
        value = np.quantile(delays, q, method="higher") if len(delays) and not quiet else np.inf
        return float(value) if np.isfinite(value) else None

    names = [alarm.first for alarm in others if alarm.first]
    errors = [abs(alarm.since - CHANGE - 1) for alarm in others if alarm.since is not None]
    return Line(
        change=change,
        detector=detector,
        orders=len(alarms),
        early=int(is_early.sum()),
        found=found,
        share=counted[0] / counted[1],
        low=low,
        high=high,
        delay=quantile(0.5),
        delay_low=quantile(0.25),
        delay_high=quantile(0.75),
        first=max(set(names), key=names.count) if names else "",
        off_by=float(np.median(errors)) if errors and not quiet else None,
    )


def compared(change: str, streams: Sequence[Scores], gate: Gate, ruler: float) -> Iterator[Line]:
    """The lines of all detectors on the same streams."""
    alarms = [monitored(Monitor(gate, ALARM_PROBABILITY, s), x) for s, x in enumerate(streams)]
    yield line(change, "goen.Monitor", alarms)
    held_out = held_out_values(gate)[SCORE]
    alone = [
        monitored(Monitor.from_scores(held_out, ALARM_PROBABILITY, s), x)
        for s, x in enumerate(streams)
    ]
    yield line(change, "goen.Monitor, score alone", alone)
    flags = np.stack([stream[FLAGGED] for stream in streams], axis=1)
    reached = cusum(flags, 0.05, 0.1) >= ruler
    times = np.where(reached.any(axis=0), reached.argmax(axis=0) + 1, 0)
    yield line(change, "CUSUM on the share flagged", [Alarm(int(t) or None) for t in times])
    for name, level in (("KS window, 1 % per test", 0.01), ("KS window, 1 % in all", 0.01 / 96)):
        found = [ks_window(stream[SCORE], held_out, level) for stream in streams]
        yield line(change, name, found)


def exchangeable(test: Scores, orders: int) -> Line:
    """No change, and held-out images that are test images too: 2,000 of them, drawn at random."""
    alarms = []
    names = [name for name in test if name != FLAGGED]
    for seed in range(orders):
        order = np.random.default_rng([9, seed]).permutation(len(test[SCORE]))
        stream = rows_of(test, order)
        monitor = Monitor.from_scores({n: stream[n][:2000] for n in names}, ALARM_PROBABILITY, seed)
        alarms.append(monitored(monitor, {n: stream[n][2000:] for n in names}))
    return line("nothing", "goen.Monitor, held-out images drawn from the test images", alarms)


# -- the table -------------------------------------------------------------------------------


def tables(file: Path = OUT) -> dict[str, Table]:
    """The table of docs/monitor.md."""
    found = [Line(**entry) for entry in read_lines(file) if "detector" in entry]
    found += [
        line(entry["change"], entry["detector"], [Alarm(at) for at in entry["alarms"]])
        for entry in read_lines(file.with_name("peers.jsonl"))
    ]
    names = list(dict.fromkeys(entry.change for entry in found))
    by_key = {(entry.detector, entry.change): entry for entry in found}
    detectors = list(dict.fromkeys(entry.detector for entry in found))

    def cell(detector: str, change: str) -> Cell:
        entry = by_key.get((detector, change))
        if entry is None:
            return Cell(text="–")
        if change == "nothing":
            return Cell(text=f"{entry.early / entry.orders:.1%}")
        delay = "–" if entry.delay is None else f"{entry.delay:,.0f}"
        early = f", {entry.early / entry.orders:.0%} early" if entry.early else ""
        return Cell(text=f"{entry.share:.0%} ({delay}){early}")

    rows = [
        Row(
            "nothing: share of false alarms" if change == "nothing" else change,
            tuple(cell(detector, change) for detector in detectors),
        )
        for change in names
    ]
    most = {q: max(e.orders for e in found if (e.change == "nothing") == q) for q in (True, False)}
    fewer = {e.detector: e.orders for e in found if e.orders < most[False]}
    few = "".join(f" (of {name} {count})" for name, count in fewer.items())
    notes = (
        f"{most[False]} orders of each change{few}, {most[True]} without one. Share of the orders "
        "in which the change was found, and the median number of images from the change to the "
        "alarm over all orders; – where half of them have none. Early: alarms before the change.",
    )
    title = "CIFAR-10 through the gate cifar10-w16, a change at image 2,000"
    table = Table("monitor-cifar10", title, tuple(detectors), tuple(rows), notes)
    return {table.name: table}


def main(
    data_dir: Path | None = None,
    orders: int = 100,
    quiet_orders: int = 400,
    stages: Path = Path("runs/stages"),
) -> None:
    """Score, draw orders, compare and write.

    Args:
        data_dir: a folder that holds image sets (else GOEN_DATA).
        orders: random orders of each change.
        quiet_orders: random orders without a change.
        stages: where finished work is kept.
    """
    torch.set_num_threads(1)
    gate = goen.load("cifar10-w16")
    p = protocol("cifar10", data_dir=data_dir, download=True)
    scores = all_scores(gate, p, Stages(stages))
    ruler = cusum_line(0.05, 0.1)
    lines, kept = [], {"held_out": held_out_values(gate)[SCORE]}
    for number, (change, draw) in enumerate(changes(scores, p.test.labels).items()):
        count = quiet_orders if change == "nothing" else orders
        streams = [draw(np.random.default_rng([number, seed])) for seed in range(count)]
        kept[f"{change}/scores"] = np.stack([stream[SCORE] for stream in streams])
        kept[f"{change}/flags"] = np.stack([stream[FLAGGED] for stream in streams])
        for entry in compared(change, streams, gate, ruler):
            lines.append(entry)
            print(entry, flush=True)
    lines.append(exchangeable(scores["test"], quiet_orders))
    print(lines[-1], flush=True)
    np.savez(stages.parent / STREAMS, **kept)
    config = {"orders": orders, "quiet_orders": quiet_orders}
    made = {"versions": versions(), "hardware": hardware(), "config": config}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(entry) + "\n" for entry in [made, *map(asdict, lines)])
    OUT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
