"""Standard input, for commands that take ``-`` in place of a file."""

import sys
from io import BufferedReader
from typing import cast

from goen.errors import UsageError


def standard_input() -> BufferedReader:
    """Its bytes.

    Raises:
        UsageError: the process was started without one.
    """
    if sys.stdin is None:  # as after <&- in a shell, or under some service managers
        raise UsageError("Standard input is closed, and - reads it. Pipe something into it.")
    return cast(BufferedReader, sys.stdin.buffer)
