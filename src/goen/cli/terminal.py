"""Messages on standard error; standard output holds results only."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from goen.progress import PipeConsole


def output() -> Console:
    """The console for results."""
    return PipeConsole(emoji=False)


def note(message: str) -> None:
    """Print one line."""
    _print(message)


def warn(message: str) -> None:
    """Print one line as a warning."""
    _print(f"warning: {message}", style="yellow")


def _print(message: str, style: str | None = None) -> None:
    # No markup, emoji codes or highlighting: file names may contain any of their syntax.
    PipeConsole(stderr=True, emoji=False).print(
        message, style=style, highlight=False, soft_wrap=True, markup=False
    )


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        show = warn if record.levelno >= logging.WARNING else note
        show(record.getMessage())


@contextmanager
def log_messages_shown() -> Iterator[None]:
    """Print the library's log messages, from INFO on; restores its logger afterwards."""
    logger = logging.getLogger("goen")
    handler, level, propagate = _Handler(), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # a root handler would print it again
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
