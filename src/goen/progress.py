"""Progress bars for long work, off unless asked for.

The command line shows them; in a notebook, ``goen.progress.show()`` does. Bars go to standard
error, so that standard output stays clean for results.
"""

# ruff: noqa: E402
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_random_state = random.getstate()  # importing rich draws a number

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

random.setstate(_random_state)

_enabled = False


class PipeConsole(Console):
    """A console for foreign text: ``:smile:`` stays, and a broken pipe is an exception.

    At a broken pipe rich would end the process with code 1.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, emoji=False)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def show(enabled: bool = True) -> None:
    """Show progress bars from now on, or stop showing them."""
    global _enabled
    _enabled = enabled


@contextmanager
def shown(enabled: bool = True) -> Iterator[None]:
    """Show progress bars within this block, or do not."""
    before = _enabled
    show(enabled)
    try:
        yield
    finally:
        show(before)


def bar() -> Progress:
    """A progress bar to use as a context; the caller adds tasks, each with a ``status``."""
    return _progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )


def download_bar(description: str) -> Progress:
    """A bar in bytes, with speed and time left, to use as a context."""
    return _progress(
        TextColumn(description, markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )


@contextmanager
def spinner(description: str) -> Iterator[None]:
    """For work whose length is not known."""
    columns = (SpinnerColumn(), TextColumn(description, markup=False), TimeElapsedColumn())
    with _progress(*columns) as progress:
        progress.add_task(description, total=None)
        yield


def _progress(*columns: ProgressColumn) -> Progress:
    console = PipeConsole(stderr=True)
    visible = _enabled and (sys.stderr.isatty() or console.is_jupyter)
    return Progress(*columns, console=console, transient=True, disable=not visible)
