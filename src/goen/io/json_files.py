"""Reading JSON from files that may come from anyone: bounded in size and depth, one error."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from goen.errors import quoted
from goen.io.limits import JSON_BYTES, JSON_DEPTH, ROW_BYTES, ROWS_BYTES
from goen.io.manifest import JsonObject, JsonValue, Manifest

_Row = TypeVar("_Row")


def json_object(path: Path) -> JsonObject:
    """The JSON object in a file.

    Raises:
        ValueError: it holds something else, or more than goen writes; see ``parse_object``.
    """
    with path.open("rb") as file:
        data = file.read(JSON_BYTES + 1)
    if len(data) > JSON_BYTES:
        raise ValueError(f"it is larger than {JSON_BYTES:,} bytes")
    return parse_object(data)


def json_rows(path: Path, read: Callable[[Manifest], _Row]) -> list[_Row]:
    """The objects of a file of JSON lines, each as ``read`` returns it; empty lines are skipped.

    Raises:
        ValueError: a line that is too long, not an object, or that ``read`` refuses; the message
            has its number. Or a file that is too large.
    """
    if path.stat().st_size > ROWS_BYTES:
        raise ValueError(f"it is larger than {ROWS_BYTES:,} bytes")
    rows = []
    number = 0
    with path.open("rb") as file:
        try:
            while line := file.readline(ROW_BYTES + 1):  # names may hold other line ends
                number += 1
                if len(line) > ROW_BYTES:
                    raise ValueError(f"it is longer than {ROW_BYTES:,} bytes")
                if line.strip():
                    rows.append(read(Manifest(parse_object(line))))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    return rows


def parse_object(data: bytes) -> JsonObject:
    """The JSON object in UTF-8 text, with none of what readers of JSON disagree on.

    Raises:
        ValueError: it is not JSON or no object, names a field twice, is nested too deeply, or holds
            text that is not Unicode.

    Example:
        >>> parse_object(b'{"a": [1, null]}')
        {'a': [1, None]}
        >>> parse_object(b'{"a": 1, "a": 2}')
        Traceback (most recent call last):
        ...
        ValueError: it has the field 'a' twice
    """
    too_deep = f"its objects and lists are nested more than {JSON_DEPTH} deep"
    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_object)
    except RecursionError as error:
        raise ValueError(too_deep) from error
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    if _is_deeper(found, JSON_DEPTH):
        raise ValueError(too_deep)
    if b"\\u" in data:  # only an escape can make text that UTF-8 has no form for
        try:
            json.dumps(found, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError("it holds half of a surrogate pair, which is no text") from error
    return found


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"it has the field {quoted(twice)} twice")
    return found


def _is_deeper(value: JsonValue, levels: int) -> bool:
    """Whether more than so many objects and lists lie within each other."""
    if not isinstance(value, dict | list):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(part, levels - 1) for part in parts)
