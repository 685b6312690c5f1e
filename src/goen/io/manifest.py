"""The JSON beside an artifact: what it may hold, and reading it field by field with its type."""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from goen.errors import first_of

JsonValue: TypeAlias = (
    "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)
JsonObject: TypeAlias = Mapping[str, JsonValue]
_Value = TypeVar("_Value")
# JSON's whole numbers have no end; torch's and NumPy's are below this.
_INT64 = 2**63


@dataclass(frozen=True)
class Manifest:
    """A JSON object whose fields are read with their type.

    Every method raises a ``ValueError`` that names the field, what was expected and what came.

    Example:
        >>> Manifest({"layers": ["a", "b"], "rate": 0.05}).texts("layers")
        ('a', 'b')
        >>> Manifest({"rate": "high"}).number("rate")
        Traceback (most recent call last):
        ...
        ValueError: its rate should be a number, got 'high'
    """

    content: JsonObject
    prefix: str = ""
    """Of the names of its fields in error messages: where in the file this object is."""

    def __contains__(self, name: str) -> bool:
        return self.content.get(name) is not None

    def text(self, name: str) -> str:
        """A text."""
        return self._typed(name, "text", str)

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false; ``default`` where it is missing."""
        if default is not None and name not in self.content:
            return default
        return self._typed(name, "true or false", bool)

    def number(self, name: str) -> float:
        """A finite number."""
        value = self._typed(name, "a number", (int, float), lambda v: not isinstance(v, bool))
        if not abs(value) <= sys.float_info.max:  # NaN, infinite, or a JSON integer too large
            raise self._expected(name, "a finite number")
        return float(value)

    def integer(self, name: str) -> int:
        """A whole number."""
        return self._typed(name, "a whole number", int, _is_integer)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number above 0; ``default`` where it is missing."""
        if default is not None and name not in self.content:
            return default
        return self._typed(name, "a whole number above 0", int, _is_count)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        return self._list(name, "texts", lambda part: isinstance(part, str))

    def counts(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers above 0."""
        return self._list(name, "whole numbers above 0", _is_count)

    def size(self, name: str) -> tuple[int, int]:
        """A height and a width."""
        sides = self.counts(name)
        if len(sides) != 2:
            raise self._expected(name, "a height and a width")
        return sides[0], sides[1]

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of finite numbers."""
        values = self._list(name, "numbers")
        return tuple(Manifest({name: part}, self.prefix).number(name) for part in values)

    def parts(self, name: str) -> list["Manifest"]:
        """A list of objects."""
        values = self._list(name, "objects")
        return [Manifest({name: part}, self.prefix).part(name) for part in values]

    def part(self, name: str) -> "Manifest":
        """An object within this one."""
        return Manifest(self._typed(name, "an object", dict), f"{self.prefix}{name}.")

    def check_names(self, known: Collection[str]) -> None:
        """There is no field but these; which of them there are is not checked."""
        unknown = sorted({*self.content} - {*known})
        if unknown:
            shown = [repr(self.prefix + name[:80]) for name in unknown]
            raise ValueError(f"it has unknown fields: {first_of(shown, 3)}")

    def _list(
        self, name: str, kind: str, fits: Callable[[Any], bool] = lambda part: True
    ) -> tuple[Any, ...]:
        """The parts of a list, if each of them fits."""
        found = self._typed(name, f"a list of {kind}", list, lambda parts: all(map(fits, parts)))
        return tuple(found)

    def _typed(
        self,
        name: str,
        kind: str,
        types: type[_Value] | tuple[type[_Value], ...],
        fits: Callable[[Any], bool] = lambda value: True,
    ) -> _Value:
        """A field of one of these types, if it fits."""
        value = self.content.get(name)
        if not isinstance(value, types) or not fits(value):
            raise self._expected(name, kind)
        return value

    def _expected(self, name: str, kind: str) -> ValueError:
        if name not in self.content:
            return ValueError(f"it has no {self.prefix}{name}, which should be {kind}")
        got = str(self.content[name])[:80]
        return ValueError(f"its {self.prefix}{name} should be {kind}, got {got!r}")


def _is_integer(value: JsonValue) -> bool:
    return type(value) is int and -_INT64 <= value < _INT64


def _is_count(value: JsonValue) -> bool:
    return type(value) is int and 0 < value < _INT64
