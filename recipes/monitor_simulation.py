"""The monitor's guarantee and its speed, on simulated scores: python recipes/monitor_simulation.py

Normal scores, so that nothing depends on a network. Four studies:

- null: no change, 2,000 streams of 10,000 images per row, with and without ties: the share of
  streams that ever raise an alarm, against what is guaranteed.
- frozen: the same bets on p-values against the held-out scores alone, which break the guarantee.
- bets: a tenth of the images moves by three standard deviations: goen's bets and the simple jumper.
- late: the same change after a thousand and after a million quiet images.

Writes results/monitor/simulation.jsonl.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tyro
from numpy.typing import NDArray
from scipy.stats import binomtest

from goen.functional.martingales import StartMixture, Starts, log_bets, simple_jumper
from goen.functional.online_conformal import smoothed_p_values, uniforms
from goen.io.provenance import hardware, versions
from goen.monitor.streams import begin
from goen.report.table import Cell, Row, Table

OUT = Path(__file__).parents[1] / "results" / "monitor" / "simulation.jsonl"
HELD_OUT = (100, 500, 2000)
RATES = (0.01, 0.05)
AT_ONCE = 200  # streams whose e-values are computed together

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]


@dataclass(frozen=True)
class Counted:
    """A share of streams, with its 95 % interval.

    Attributes:
        study: null, frozen, bets or late.
        what: which bets, or which scores.
        held_out: how many held-out scores.
        images: how many images each stream has, or has before the change.
        rate: the guaranteed alarm probability; of ``restart`` the guaranteed mean time.
        streams: how many.
        alarms: how many of them raised an alarm.
        value: that share, or the mean or median number of images until the alarm.
        low: lower end of its interval.
        high: upper end.
    """

    study: str
    what: str
    held_out: int
    images: int
    rate: float
    streams: int
    alarms: int
    value: float
    low: float
    high: float


def p_values(held_out: Floats, scores: Floats, seed: int) -> Floats:
    """The p-values that a monitor has for these scores."""
    streams = begin({"score": held_out}, {"score": 1.0}, (), seed=seed, starts="once")
    rounded = streams.streams[0].rounded(scores)
    return smoothed_p_values(streams.counts[0].add(rounded), uniforms(seed, 0, len(scores)))[0]


def highest(p: Floats, starts: Starts = "once") -> Floats:
    """The running maximum of the log e-value of each column of p-values ``(N, streams)``."""
    parts = []
    for start in range(0, p.shape[1], AT_ONCE):
        mixture, columns = StartMixture(len(p[0, start : start + AT_ONCE]), starts), []
        for row in range(0, len(p), 1024):
            part = p[row : row + 1024, start : start + AT_ONCE]
            columns.append(mixture.advance(log_bets(part, 1 - part)).log_capital)
        parts.append(np.concatenate(columns))
    return np.maximum.accumulate(np.concatenate(parts, axis=1))


def share(study: str, what: str, held_out: int, images: int, rate: float, found: Floats) -> Counted:
    """The share of streams in which something was found."""
    alarms, streams = int(found.sum()), len(found)
    low, high = binomtest(alarms, streams).proportion_ci()
    return Counted(
        study, what, held_out, images, rate, streams, alarms, alarms / streams, low, high
    )


def null(streams: int, length: int) -> Iterator[Counted]:
    """No change: continuous scores, scores with ties, and three dependent streams per image."""
    draws: dict[str, Draw] = {
        "no ties": lambda rng, n: rng.normal(size=n),
        "ties": lambda rng, n: rng.normal(size=n).round(0),
    }
    for what, draw in draws.items():
        for held_out in HELD_OUT:
            rng = np.random.default_rng([1, held_out, len(what)])
            p = np.empty((length, streams))
            for seed in range(streams):
                scores = draw(rng, held_out + length)
                p[:, seed] = p_values(scores[:held_out], scores[held_out:], seed)
            log_e_value = highest(p)
            for images in (1000, length):
                for rate in RATES:
                    found = log_e_value[images - 1] >= -np.log(rate)
                    yield share("null", what, held_out, images, rate, found)
    yield from several(streams, length // 5)
    yield mean_time(streams, length)


def several(streams: int, length: int) -> Iterator[Counted]:
    """Three streams of the same images, x, |x| and -x, each with a third of the false alarms."""
    held_out, top = 500, np.full(streams, -np.inf)
    for number in range(3):
        rng = np.random.default_rng(2)  # the same images for each of the three
        p = np.empty((length, streams))
        for seed in range(streams):
            x = rng.normal(size=held_out + length)
            scores = (x, np.abs(x), -x)[number]
            p[:, seed] = p_values(scores[:held_out], scores[held_out:], seed)
        top = np.maximum(top, highest(p)[-1] - np.log(3))
    for rate in RATES:
        yield share("null", "three streams", held_out, length, rate, top >= -np.log(rate))


def mean_time(streams: int, length: int, guaranteed: int = 1000) -> Counted:
    """The mean time to a false alarm of the second mode; streams without an alarm count whole."""
    rng, held_out = np.random.default_rng(3), 500
    p = np.empty((length, streams))
    for seed in range(streams):
        scores = rng.normal(size=held_out + length)
        p[:, seed] = p_values(scores[:held_out], scores[held_out:], seed)
    reached = highest(p, "restart") >= np.log(2 * guaranteed)
    time = np.where(reached[-1], reached.argmax(axis=0) + 1, length)
    error = 1.96 * time.std(ddof=1) / np.sqrt(streams)
    mean = float(time.mean())
    alarms = int(reached[-1].sum())
    return Counted(
        "null", "mean time", held_out, length, guaranteed, streams, alarms, mean, mean - error,
        mean + error,
    )  # fmt: skip


def frozen(streams: int, length: int = 2000, held_out: int = 500) -> Iterator[Counted]:
    """p-values against the held-out scores alone, without a change."""
    rng = np.random.default_rng(4)
    p = np.empty((length, streams))
    for stream in range(streams):
        calibration = np.sort(rng.normal(size=held_out))
        above = held_out - np.searchsorted(calibration, rng.normal(size=length))
        p[:, stream] = (above + rng.random(length)) / (held_out + 1)
    log_e_value = highest(p)[-1]
    for rate in RATES:
        found = log_e_value >= -np.log(rate)
        yield share("frozen", "held-out scores alone", held_out, length, rate, found)


def bets(streams: int, length: int = 3000, held_out: int = 500) -> Iterator[Counted]:
    """Three standard deviations in a tenth of the images, from the first image on."""
    rng = np.random.default_rng(5)
    p = np.empty((length, streams))
    for seed in range(streams):
        moved = rng.normal(size=length) + 3 * (rng.random(length) < 0.1)
        p[:, seed] = p_values(rng.normal(size=held_out), moved, seed)
    jumper = np.stack([simple_jumper(column) for column in p.T], axis=1)
    log_e_value = {"goen": highest(p), "simple jumper": np.maximum.accumulate(jumper)}
    for what, capital in log_e_value.items():
        yield share("bets", what, held_out, length, 0.05, capital[-1] >= -np.log(0.05))


def late(streams: int, after: int = 3000, held_out: int = 2000) -> Iterator[Counted]:
    """The number of images until the alarm, after a thousand and after a million quiet ones."""
    changes: dict[str, Draw] = {
        "3 sd in a tenth": lambda rng, n: rng.normal(size=n) + 3 * (rng.random(n) < 0.1),
        "1 sd in all": lambda rng, n: rng.normal(1, 1, size=n),
        "0.3 sd in all": lambda rng, n: rng.normal(0.3, 1, size=n),
    }
    for quiet in (1000, 1_000_000):
        # The quiet part is the same for every change; a column per stream and change follows it.
        p = {what: np.empty((after, streams)) for what in changes}
        before = np.empty((min(quiet, 1024), streams))
        for seed in range(streams):
            rng = np.random.default_rng([6, quiet, seed])
            for what, draw in changes.items():
                scores = np.concatenate([rng.normal(size=quiet), draw(rng, after)])
                all_p = p_values(rng.normal(size=held_out), scores, seed)
                p[what][:, seed] = all_p[quiet:]
            before[:, seed] = all_p[quiet - len(before) : quiet]
        for what in changes:
            yield delay(what, before, p[what], quiet, held_out)


def delay(what: str, before: Floats, p: Floats, quiet: int, held_out: int) -> Counted:
    """The median delay at a rate of 0.01, with the quartiles of the streams."""
    mixture = StartMixture(before.shape[1], "once")
    skipped = quiet - len(before)
    if skipped:
        # What was staked a thousand images earlier or more has been lost: it is left out, which
        # can only make the alarm later.
        mixture.images = skipped // 256 * 256
        mixture.capital[:] = -500.0
    mixture.advance(log_bets(before, 1 - before))
    log_e_value = mixture.advance(log_bets(p, 1 - p)).log_capital
    reached = np.maximum.accumulate(log_e_value)[-1] >= -np.log(0.01)
    time = np.where(reached, (log_e_value >= -np.log(0.01)).argmax(axis=0) + 1, np.inf)
    low, median, high = (float(np.quantile(time, q, method="higher")) for q in (0.25, 0.5, 0.75))
    return Counted(
        "late", what, held_out, quiet, 0.01, len(time), int(reached.sum()), median, low, high
    )


def tables(file: Path = OUT) -> dict[str, Table]:
    """The tables of docs/monitor.md, by name."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    rows = [Counted(**line) for line in lines if "study" in line]
    return {"monitor-null": _null_table(rows), "monitor-late": _late_table(rows)}


def _null_table(rows: list[Counted]) -> Table:
    def cell(row: Counted) -> Cell:
        return Cell(row.value, ".2%", low=row.low, high=row.high)

    found: dict[str, list[Cell]] = {}
    for row in rows:
        if row.study in ("null", "frozen") and row.what != "mean time":
            label = f"{row.what}, {row.held_out:,} held-out scores, {row.images:,} images"
            found.setdefault(label, []).append(cell(row))
    streams = next(row.streams for row in rows if row.study == "null")
    columns = tuple(f"guaranteed: {rate:.0%}" for rate in RATES)
    body = tuple(
        Row(label, tuple(cells), "not so: p-values against held-out scores alone")
        if label.startswith("held-out")
        else Row(label, tuple(cells), "ranked among everything seen before")
        for label, cells in found.items()
    )
    title = f"Share of {streams:,} streams without a change that raised an alarm"
    return Table("monitor-null", title, columns, body)


def _late_table(rows: list[Counted]) -> Table:
    late_rows = [row for row in rows if row.study == "late"]
    columns = {row.images: f"after {row.images:,} quiet images" for row in late_rows}
    labels = dict.fromkeys(row.what for row in late_rows)
    body = [
        Row(
            what,
            tuple(
                Cell(row.value, ".0f", low=row.low, high=row.high)
                for images in columns
                for row in late_rows
                if (row.what, row.images) == (what, images)
            ),
        )
        for what in labels
    ]
    first = late_rows[0]
    notes = (
        f"Median over {first.streams} streams, with quartiles; {first.held_out:,} held-out scores, "
        f"alarm probability {first.rate:g}.",
    )
    title = "Images from the change to the alarm"
    return Table("monitor-late", title, tuple(columns.values()), tuple(body), notes)


def main(streams: int = 2000, length: int = 10_000, late_streams: int = 50) -> None:
    """Simulate, print and write.

    Args:
        streams: of each row without a change.
        length: images of each of them.
        late_streams: of each row with a change after quiet images.
    """
    rows: list[Counted] = []
    for study in (
        null(streams, length), frozen(streams), bets(min(streams, 500)), late(late_streams)
    ):  # fmt: skip
        for row in study:
            rows.append(row)
            print(
                f"{row.study:7} {row.what:22} {row.held_out:5} {row.images:9} {row.rate:7g} "
                f"{row.alarms:5} of {row.streams:5}   {row.value:.4g}   "
                f"[{row.low:.4g}, {row.high:.4g}]",
                flush=True,
            )
    made = {
        "versions": versions(),
        "hardware": hardware(),
        "config": {"streams": streams, "length": length, "late_streams": late_streams},
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    lines = [made, *map(asdict, rows)]
    OUT.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
