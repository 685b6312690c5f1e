"""``goen watch``: follow a folder or rows of ``goen score``, and say when the images changed."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import tyro
from rich.live import Live
from rich.text import Text

from goen.cli.chart import Chart
from goen.cli.model import open_gate
from goen.cli.options import Device, OptionalFunction, OptionalModel, OptionalRate
from goen.cli.terminal import note, visible_line, warn
from goen.data.forms import COLOUR
from goen.errors import UsageError
from goen.gate import DEFAULT_GATE, Gate
from goen.gate.score_files import score_batch
from goen.monitor import MonitorState
from goen.monitor.feeds import check_folder, follow_folder, read_rows
from goen.monitor.watch import Watch, WatchSettings, open_watch
from goen.progress import PipeConsole
from goen.runs.manifest import JsonObject

ALARM = 3
"""The exit code of ``goen watch`` when there is an alarm."""
STDIN = Path("-")

OptionalCount = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]


def watch_command(
    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER|-")],
    gate: str = DEFAULT_GATE,
    out: Path = Path("runs/watch"),
    false_alarm: OptionalRate = None,
    average_run_length: OptionalCount = None,
    seed: OptionalCount = None,
    once: bool = False,
    keep_going: bool = False,
    restart: bool = False,
    every: float = 2.0,
    model: OptionalModel = None,
    preprocess: OptionalFunction = None,
    device: Device = "cpu",
) -> int:
    """Follow a stream of images, and raise an alarm when they have changed.

    Without a change, the probability that an alarm is ever raised is at most --false-alarm, however
    long the command runs. The images are those of a folder, oldest first, and those that are added
    to it; or rows of goen score on standard input. Events are written to standard output as JSON
    lines, and with a row for every image to the folder --out, of which goen report makes a page.
    The command can be killed at any time; the same command continues where it was. A path that was
    counted before is not counted again.
    Exit code 3 on an alarm, 0 if the images ended without one, 2 on an error.

    For example: goen watch camera/ --gate runs/digits
                 goen watch camera/ --once --out runs/camera
                 goen score photos/ | goen watch -
                 goen report runs/watch

    Args:
        source: a folder of images, or - for rows of goen score on standard input.
        gate: the folder of a gate (goen fit) or of a run (goen run), or the name of a bundled gate.
        out: the folder of the watch.
        false_alarm: upper bound on the probability of ever raising an alarm without a change
            (default: 0.01).
        average_run_length: bound the mean number of images until a false alarm instead; there will
            be false alarms.
        seed: of the random numbers that break ties (default: 0).
        once: stop when all images that are in the folder have been counted.
        keep_going: do not stop at an alarm.
        restart: begin a new test after an alarm, with the promise anew.
        every: seconds between two searches of the folder.
        model: the --model of goen fit, for a gate made by it: MODULE:FUNCTION, hf:FOLDER or
            timm:NAME.
        preprocess: the preprocessing function, if the gate was fitted with one.
        device: where the network runs: cpu, or cuda (cuda:1 is the second GPU).
    """
    if not 0 < every < 1e6:
        raise UsageError(f"--every is a number of seconds above 0, got {every}.")
    if source != STDIN:
        check_folder(source, out)
    loaded = open_gate(gate, model, preprocess, device=device)
    # Asked for at once: a gate that takes no images is an error before the watch is opened.
    arrays = source != STDIN and loaded.picture_form != COLOUR
    settings = WatchSettings(false_alarm, average_run_length, seed)
    with open_watch(out, loaded, gate, settings) as watch:
        _print_events([watch.opened])
        if restart:
            _print_events([watch.restart()])
        note(str(watch.monitor.promise))
        batches = (
            read_rows(sys.stdin)
            if source == STDIN
            else _scored(loaded, source, watch, None if once else every, arrays)
        )
        state = _follow(watch, batches, keep_going)
    note(str(state))
    if watch.unreadable:
        files = "1 file" if watch.unreadable == 1 else f"{watch.unreadable:,} files"
        warn(f"{files} could not be read.")
    return ALARM if state.alarm else 0


def _scored(
    gate: Gate, folder: Path, watch: Watch, every: float | None, arrays: bool
) -> Iterator[list[JsonObject]]:
    """Rows of the new images of a folder, of arrays as well if asked."""
    found = follow_folder(folder, watch.is_new, every=every, leave_out=watch.folder, arrays=arrays)
    with ThreadPoolExecutor() as pool:
        for files in found:
            yield [scored.row for scored in score_batch(gate, files, pool)]


def _follow(watch: Watch, batches: Iterator[list[JsonObject]], keep_going: bool) -> MonitorState:
    """Count the batches until they end or there is an alarm; draw the evidence meanwhile."""
    state = watch.monitor.state
    if state.alarm and not keep_going:
        note("The alarm was raised before. --restart begins a new test, --keep-going continues.")
        return state
    chart = Chart(state.alarm_line)
    with _drawing() as draw:
        for rows in batches:
            if not rows:
                continue
            events = watch.add(rows)
            state = watch.monitor.state
            chart.add(state.batch.log_evidence.max(axis=1).tolist())
            _print_events(events)
            draw(chart, state)
            if state.alarm and not keep_going:
                break
    return state


def _print_events(events: list[JsonObject]) -> None:
    for event in events:
        sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


class _Draw:
    def __init__(self, live: Live | None) -> None:
        self._live = live

    def __call__(self, chart: Chart, state: MonitorState) -> None:
        if self._live is not None:
            text = chart.drawn(self._live.console.width)
            self._live.update(Text(f"{text}\n{_caption(state)}"), refresh=True)


@contextmanager
def _drawing() -> Iterator[_Draw]:
    """Draws on a terminal; elsewhere, such as in a log, nothing."""
    console = PipeConsole(stderr=True)
    if not console.is_terminal:
        yield _Draw(None)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield _Draw(live)


def _caption(state: MonitorState) -> str:
    """One line: images, share flagged, evidence of each stream."""
    parts = [f"{state.images:,} images"]
    if state.flagged is not None:
        parts.append(
            f"{state.flagged:.1%} flagged ({state.flagged_low:.1%} to {state.flagged_high:.1%})"
        )
    parts += [f"{name} {stream.log_evidence:.1f}" for name, stream in state.streams.items()]
    return visible_line("log evidence, " + ", ".join(parts))
