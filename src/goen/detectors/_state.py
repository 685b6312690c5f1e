"""A detector as its settings and tensors, which gates keep."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import NamedTuple, Self, final

import torch
from torch import Tensor

from goen.detectors._reading import OutputsReader
from goen.errors import quoted
from goen.io.manifest import JsonObject, JsonValue
from goen.io.tensors import Shape, Tensors


class Expected(NamedTuple):
    """What a tensor of a saved state must be: finite numbers of this shape, range and type."""

    shape: Shape
    low: float = -math.inf
    high: float = math.inf
    dtype: torch.dtype = torch.float64


class Stored(OutputsReader):
    """Gives its constructor's arguments and what it learnt, and is made again of both."""

    def _prepare(self) -> None:
        """Compute once, from what was learnt, what every score needs and no state holds."""

    @final
    def settings(self) -> dict[str, JsonValue]:
        """The arguments of its constructor, as JSON."""
        found = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        return {name: _as_json(value) for name, value in found.items()}

    def state(self) -> dict[str, Tensor]:
        """Everything that was learnt, as tensors by name."""
        return {
            name.removesuffix("_"): value
            for name, value in vars(self).items()
            if name.endswith("_") and isinstance(value, Tensor)
        }

    def _load(self, tensors: Tensors) -> None:
        """Take what ``state`` gave; a ``ValueError`` names a tensor it cannot have given."""
        expected = self._expected()
        if not expected:
            tensors.check_finite()
        else:
            tensors.check_names(expected)
        sizes: dict[str | int, int] = {}  # of one name is one size
        for name, (shape, low, high, dtype) in expected.items():
            wanted = tuple(sizes.get(size, size) for size in shape)
            found = tensors.floats(name, wanted, low=low, high=high, dtype=dtype)
            sizes |= dict(zip(shape, found.shape, strict=True))
        for name, value in tensors.items():
            setattr(self, f"{name}_", value)

    def _expected(self) -> Mapping[str, Expected]:
        """What each tensor of ``state`` must be, since a file may come from anyone.

        ``widths_`` and ``num_classes_`` are known; a size with a name is the same in all tensors.
        Where this is empty, all finite tensors will do.
        """
        return {}

    @classmethod
    def from_settings(cls, settings: JsonObject) -> Self:
        """A detector with these arguments, as ``settings`` gives them; not fitted."""
        known = inspect.signature(cls).parameters
        unknown = sorted({*settings} - {*known})
        if unknown:
            raise ValueError(f"it has unknown settings: {', '.join(unknown)[:200]}")
        for name, value in settings.items():
            if isinstance(known[name].default, bool) and not isinstance(value, bool):
                raise ValueError(f"its {name} should be true or false, got {quoted(value)}")
        try:
            return cls(**{name: cls._setting(name, value) for name, value in settings.items()})
        except TypeError as error:
            raise ValueError(f"its settings are of the wrong type: {error}") from error

    @classmethod
    def _setting(cls, name: str, value: JsonValue) -> object:
        """An argument of the constructor from its JSON."""
        return tuple(value) if isinstance(value, list) else value

    @final
    def load_state(
        self, state: Mapping[str, Tensor], widths: Mapping[str, int], classes: int
    ) -> Self:
        """Take what ``state``, ``widths_`` and ``num_classes_`` of a fitted detector were.

        Raises:
            ValueError: a tensor that this detector cannot have learnt; the message names it.
        """
        self.forget()
        self.widths_, self.num_classes_ = dict(widths), classes
        self._load(Tensors.of(state))
        self._prepare()
        return self

    @final
    def __repr__(self) -> str:
        """The class and the arguments that differ from their defaults, as scikit-learn prints."""
        parameters = inspect.signature(type(self)).parameters
        arguments = [
            f"{name}={getattr(self, name)!r}"
            for name, parameter in parameters.items()
            if getattr(self, name) != parameter.default
        ]
        return f"{type(self).__name__}({', '.join(arguments)})"


def _as_json(value: object) -> JsonValue:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, tuple | list):
        return [_as_json(part) for part in value]
    assert value is None or isinstance(value, bool | int | float | str), value
    return value
