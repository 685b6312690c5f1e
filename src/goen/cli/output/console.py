"""Messages on standard error; standard output holds results only."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from goen.errors import GoenWarning
from goen.escaping import visible
from goen.progress import PipeConsole


def visible_line(text: str) -> str:
    """``visible``, on one line: also line breaks and tabs are written out."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def note(message: str) -> None:
    """Print one line."""
    _print(message)


def warn(message: str) -> None:
    """Print one line as a warning."""
    _print(f"warning: {message}", style="yellow")


def _print(message: str, style: str | None = None) -> None:
    # No markup, emoji codes or highlighting: file names may contain any of their syntax.
    PipeConsole(stderr=True).print(
        visible(message), style=style, highlight=False, soft_wrap=True, markup=False
    )


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        show = warn if record.levelno >= logging.WARNING else note
        show(record.getMessage())


_python_shows = warnings.showwarning


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, GoenWarning):
        _print(f"\nWARNING: {message}\n", style="bold yellow")
    else:
        _python_shows(message, category, filename, lineno, file, line)


@contextmanager
def log_messages_shown() -> Iterator[None]:
    """Print the library's log messages, from INFO on, and its warnings; restores all afterwards."""
    with logged_to(_Handler(), "goen"), warnings.catch_warnings():
        warnings.simplefilter("always", GoenWarning)
        warnings.showwarning = _show_warning
        yield


@contextmanager
def logged_to(handler: logging.Handler, name: str, level: int = logging.INFO) -> Iterator[None]:
    """Hand the messages of this logger to the handler, from this level on; restores it after."""
    logger = logging.getLogger(name)
    before, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False  # a root handler would print it again
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        logger.propagate = propagate
