"""Progress on the terminal: one look for every long piece of work.

Bars go to standard error, so that standard output stays clean for results, and vanish when
standard error is not a terminal.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class PipeConsole(Console):
    """A console whose broken pipe is an exception: rich would end the process with code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """The console for everything that is not a result."""
    return PipeConsole(stderr=True)


def output() -> Console:
    """The console for results."""
    return PipeConsole()


def note(message: str) -> None:
    """Say one line to the person watching."""
    console().print(message, highlight=False, soft_wrap=True, markup=False)


def warn(message: str) -> None:
    """Say one line that the person watching should not miss."""
    console().print(
        f"warning: {message}", style="yellow", highlight=False, soft_wrap=True, markup=False
    )


def bar() -> Progress:
    """A progress bar to use as a context; the caller adds tasks, each with a ``status``."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console(),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


@contextmanager
def download_bar(description: str) -> Iterator[Progress]:
    """A bar in bytes, with speed and time left."""
    with Progress(
        TextColumn(description),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console(),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as progress:
        yield progress


@contextmanager
def spinner(description: str) -> Iterator[None]:
    """For work whose length nobody can know."""
    with Progress(
        SpinnerColumn(),
        TextColumn(description),
        TimeElapsedColumn(),
        console=console(),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as progress:
        progress.add_task(description, total=None)
        yield
