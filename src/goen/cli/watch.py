"""``goen watch``: follow a folder or rows of ``goen score``, and say when the images changed."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import tyro
from rich.live import Live
from rich.text import Text

from goen.cli.options.model import GateOptions
from goen.cli.options.standard_input import standard_input
from goen.cli.options.types import Device, OptionalCount, OptionalRate
from goen.cli.output.chart import Chart
from goen.cli.output.console import note, visible_line, warn
from goen.data.images.pixel_format import COLOUR
from goen.errors import UsageError
from goen.gate import DEFAULT_GATE
from goen.io.manifest import JsonObject
from goen.monitor import MonitorState
from goen.monitor.feeds import FollowedFolder, check_folder, read_rows
from goen.monitor.keeping import KeptMonitor, MonitorSettings, open_monitor_folder
from goen.progress import PipeConsole
from goen.scoring.pipeline import NumberedShard, ScoreSettings, ShardScorer
from goen.scoring.shards import FileShard

ALARM = 3
"""The exit code of ``goen watch`` when there is an alarm."""
STDIN = Path("-")


def watch_command(
    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER|-")],
    gate: str = DEFAULT_GATE,
    out: Path = Path("runs/watch"),
    alarm_probability: OptionalRate = None,
    average_run_length: OptionalCount = None,
    seed: OptionalCount = None,
    once: bool = False,
    keep_going: bool = False,
    restart: bool = False,
    every: float = 2.0,
    options: Annotated[GateOptions, tyro.conf.arg(name="")] = GateOptions(),  # noqa: B008
    device: Device = "cpu",
) -> int:
    """Follow a stream of images, and raise an alarm when they have changed.

    Without a change, the probability that an alarm is ever raised is at most --alarm-probability,
    however long the command runs. The images are those of a folder, oldest first, and those that
    are added to it; or rows of goen score on standard input. Events are written to standard output
    as JSON lines, and with a row for every image to the folder --out, of which goen report makes a
    page. The command can be killed at any time; the same command continues where it was. A path
    that was counted before is not counted again. A file that cannot be read is tried again when it
    changes and for a minute after that; unfinished uploads (.part, .tmp, ...) are left alone.
    Exit code 3 on an alarm, 0 if the images ended without one, 2 on an error.

    For example: goen watch camera/ --gate runs/digits
                 goen watch camera/ --once --out runs/camera
                 goen score photos/ | goen watch -
                 goen report runs/watch

    Args:
        source: Folder of images, or - for rows of goen score on standard input.
        gate: Folder of a gate (goen fit) or of a run (goen run), or name of a bundled gate.
        out: Folder for the state of the monitor, rows and events.
        alarm_probability: Maximum probability of ever raising an alarm without a change (default:
            0.01).
        average_run_length: Minimum mean number of images until a false alarm, in place of
            --alarm-probability; there will be false alarms.
        seed: Seed of the random numbers that break ties (default: 0).
        once: Stop when all images that are in the folder have been counted, or at an alarm.
        keep_going: Continue after an alarm.
        restart: Restart the test after an alarm, and with it the guarantee.
        every: Seconds between two searches of the folder.
        options: The gate's own model.
        device: Device of the network: cpu, or cuda (cuda:1 is the second GPU).
    """
    if not 0 < every < 1e6:
        raise UsageError(f"--every is a number of seconds above 0, got {every}.")
    stdin = standard_input() if source == STDIN else None
    if stdin is None:
        check_folder(source, out)
    loaded = options.open(gate)
    scorer = ShardScorer(loaded, ScoreSettings(device=device))
    if stdin is None:
        loaded.pixel_format  # noqa: B018  (a gate that takes no images is an error now)
    settings = MonitorSettings(alarm_probability, average_run_length, seed)
    with open_monitor_folder(out, loaded, gate, settings, restart=restart) as kept:
        _print_events(kept.opened)
        note(str(kept.monitor.guarantee))
        batches = (
            read_rows(stdin)
            if stdin is not None
            else _scored(scorer, source, kept, None if once else every)
        )
        state = _follow(kept, batches, keep_going)
        assert kept.journal is not None
        unreadable = kept.journal.unreadable
    note(str(state))
    if unreadable:
        files = "1 file" if unreadable == 1 else f"{unreadable:,} files"
        warn(f"{files} could not be read.")
    return ALARM if state.alarm else 0


def _scored(
    scorer: ShardScorer, folder: Path, kept: KeptMonitor, every: float | None
) -> Iterator[list[JsonObject]]:
    """Rows of the new images of a folder; of arrays as well, if the gate's are not plain colour.

    A file that cannot be read has its row when it is given up.
    """
    assert kept.journal is not None
    is_new, out = kept.journal.is_new, kept.journal.folder
    arrays = scorer.gate.pixel_format != COLOUR
    followed = FollowedFolder(folder, is_new, every=every, leave_out=out, arrays=arrays)
    for number, files in enumerate(followed):
        shard = FileShard(tuple(map(str, files)))
        rows = (row for rows in scorer.rows(NumberedShard(number, shard)) for row in rows)
        named = zip(files, rows, strict=True)
        yield [row for f, row in named if row["label"] is not None or followed.gives_up(f)]


def _follow(
    kept: KeptMonitor, batches: Iterator[list[JsonObject]], keep_going: bool
) -> MonitorState:
    """Count the batches until they end or there is an alarm; draw the e-value meanwhile."""
    state = kept.state
    if state.alarm and not keep_going:
        note("The alarm was raised before. --restart begins a new test, --keep-going continues.")
        return state
    chart = Chart(state.alarm_line)
    console = PipeConsole(stderr=True)
    # Elsewhere than on a terminal, such as in a log, nothing is drawn.
    drawing = Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext()
    with drawing as live:
        for rows in batches:
            if not rows:
                continue
            events = kept.add_rows(rows)
            state = kept.state
            chart.add(state.batch.log_e_value.max(axis=1).tolist())
            _print_events(events)
            if live is not None:
                live.update(Text(f"{chart.drawn(console.width)}\n{_caption(state)}"), refresh=True)
            if state.alarm and not keep_going:
                note("Stopped at the alarm: --keep-going counts the images after it, too.")
                break
    return state


def _print_events(events: list[JsonObject]) -> None:
    for event in events:
        sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _caption(state: MonitorState) -> str:
    """One line: images, share flagged, log e-value of each stream."""
    parts = [f"{state.images:,} images"]
    if state.flagged is not None:
        parts.append(
            f"{state.flagged:.1%} flagged ({state.flagged_low:.1%} to {state.flagged_high:.1%})"
        )
    parts += [f"{name} {stream.log_e_value:.1f}" for name, stream in state.streams.items()]
    return visible_line("log e-value, " + ", ".join(parts))
