"""The JSON beside an artifact: what it may hold, and reading it field by field with its type."""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

JsonValue: TypeAlias = (
    "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)
JsonObject: TypeAlias = Mapping[str, JsonValue]
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
        value = self.content.get(name)
        if not isinstance(value, str):
            raise self._expected(name, "text")
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false; ``default`` where it is missing."""
        value = self.content.get(name, default)
        if not isinstance(value, bool):
            raise self._expected(name, "true or false")
        return value

    def number(self, name: str) -> float:
        """A finite number."""
        value = self.content.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._expected(name, "a number")
        if not abs(value) <= sys.float_info.max:  # NaN, infinite, or a JSON integer too large
            raise self._expected(name, "a finite number")
        return float(value)

    def integer(self, name: str) -> int:
        """A whole number."""
        value = self.content.get(name)
        if type(value) is not int or not -_INT64 <= value < _INT64:
            raise self._expected(name, "a whole number")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        value = self.content.get(name)
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            raise self._expected(name, "a list of texts")
        return tuple(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of finite numbers."""
        value = self.content.get(name)
        if not isinstance(value, list):
            raise self._expected(name, "a list of numbers")
        return tuple(Manifest({name: part}, self.prefix).number(name) for part in value)

    def counts(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers above 0."""
        value = self.content.get(name)
        if not isinstance(value, list) or not all(map(_is_count, value)):
            raise self._expected(name, "a list of whole numbers above 0")
        return tuple(value)

    def size(self, name: str) -> tuple[int, int]:
        """A height and a width."""
        sides = self.counts(name)
        if len(sides) != 2:
            raise self._expected(name, "a height and a width")
        return sides[0], sides[1]

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number above 0; ``default`` where it is missing."""
        value = self.content.get(name, default)
        if not _is_count(value):
            raise self._expected(name, "a whole number above 0")
        return value

    def parts(self, name: str) -> list["Manifest"]:
        """A list of objects."""
        value = self.content.get(name)
        if not isinstance(value, list):
            raise self._expected(name, "a list of objects")
        return [Manifest({name: part}, self.prefix).part(name) for part in value]

    def part(self, name: str) -> "Manifest":
        """An object within this one."""
        value = self.content.get(name)
        if not isinstance(value, dict):
            raise self._expected(name, "an object")
        return Manifest(value, f"{self.prefix}{name}.")

    def check_names(self, known: Collection[str]) -> None:
        """There is no field but these; which of them there are is not checked."""
        unknown = sorted({*self.content} - {*known})
        if unknown:
            shown = ", ".join(repr(self.prefix + name[:80]) for name in unknown[:3])
            more = ", ..." if len(unknown) > 3 else ""
            raise ValueError(f"it has unknown fields: {shown}{more}")

    def _expected(self, name: str, kind: str) -> ValueError:
        if name not in self.content:
            return ValueError(f"it has no {self.prefix}{name}, which should be {kind}")
        got = str(self.content[name])[:80]
        return ValueError(f"its {self.prefix}{name} should be {kind}, got {got!r}")


def _is_count(value: JsonValue) -> TypeGuard[int]:
    return type(value) is int and 0 < value < _INT64
