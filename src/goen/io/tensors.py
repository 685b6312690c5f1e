"""Reading tensors from files that may come from anyone: each with its type, shape and range."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from goen.errors import first_of
from goen.io.files import file_sha256
from goen.io.json_files import parse_object
from goen.io.limits import JSON_BYTES, TENSOR_BYTES
from goen.io.manifest import JsonObject

Shape: TypeAlias = tuple[int | str, ...]
"""Sizes; one that is not known has a name for people, and is at least 1."""


class Tensors(dict[str, Tensor]):
    """Tensors by name, read with their type, shape and range, as ``Manifest`` reads fields.

    Every method raises a ``ValueError`` that names the tensor, what was expected and what came.

    Args:
        content: the tensors.
        prefix: of their names in the file, for error messages.

    Example:
        >>> tensors = Tensors({"scores": torch.tensor([[1.0, 2.0]])})
        >>> tensors.floats("scores", ("images",), dtype=torch.float32)
        Traceback (most recent call last):
        ...
        ValueError: its tensor scores should be float32 of shape (images,), got float32 (1, 2)
        >>> tensors.floats("scores", ("images", 2), dtype=torch.float32, low=2.0)
        Traceback (most recent call last):
        ...
        ValueError: its tensor scores should hold finite numbers from 2.0, got 1.0
    """

    def __init__(self, content: Mapping[str, Tensor], prefix: str = "") -> None:
        super().__init__(content)
        self.prefix = prefix

    @classmethod
    def of(cls, content: Mapping[str, Tensor]) -> "Tensors":
        """The same tensors; a ``Tensors`` is returned as it is."""
        return content if isinstance(content, Tensors) else Tensors(content)

    def part(self, prefix: str) -> "Tensors":
        """The tensors whose names begin with ``prefix``, without it."""
        named = {k.removeprefix(prefix): v for k, v in self.items() if k.startswith(prefix)}
        return Tensors(named, self.prefix + prefix)

    def floats(
        self,
        name: str,
        shape: Shape,
        *,
        dtype: torch.dtype = torch.float64,
        low: float = -math.inf,
        high: float = math.inf,
    ) -> Tensor:
        """A tensor of finite numbers from ``low`` to ``high``."""
        found = self.of_shape(name, shape, dtype)
        self._check_range(name, found, low, high)
        return found

    def integers(
        self, name: str, shape: Shape, *, low: float = -math.inf, high: float = math.inf
    ) -> Tensor:
        """A tensor of int64 from ``low`` to ``high``."""
        return self.floats(name, shape, dtype=torch.int64, low=low, high=high)

    def check_names(self, known: Collection[str]) -> None:
        """There is no tensor but these; which of them there are is not checked."""
        unknown = sorted(self._shown(name) for name in {*self} - {*known})
        if unknown:
            raise ValueError(f"it has tensors of unknown names: {first_of(unknown, 3)}")

    def check_like(
        self, expected: Mapping[str, Tensor], *, largest: float | None = math.inf
    ) -> None:
        """The tensors have the names, types and shapes of these; their floats are finite and at
        most ``largest`` in size, or with ``None`` anything.
        """
        self.check_names(expected)
        for name, other in expected.items():
            found = self.of_shape(name, tuple(other.shape), other.dtype)
            if found.is_floating_point() and largest is not None:
                self._check_range(name, found, -largest, largest)

    def check_finite(self) -> None:
        """All numbers are finite."""
        for name, values in self.items():
            if values.is_floating_point():
                self._check_range(name, values)

    def of_shape(self, name: str, shape: Shape, dtype: torch.dtype) -> Tensor:
        """A tensor of this shape and type, whatever its numbers."""
        expected = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        wanted = f"{dtype} of shape ({expected})".removeprefix("torch.")
        if name not in self:
            raise ValueError(f"it has no tensor {self._shown(name)}, which should be {wanted}")
        found = self[name]
        fits = found.ndim == len(shape) and all(
            size >= 1 if isinstance(known, str) else size == known
            for size, known in zip(found.shape, shape, strict=True)
        )
        if found.dtype != dtype or not fits:
            raise ValueError(
                f"its tensor {self._shown(name)} should be {wanted}, got "
                f"{str(found.dtype).removeprefix('torch.')} {tuple(found.shape)}"
            )
        return found

    def _check_range(
        self, name: str, values: Tensor, low: float = -math.inf, high: float = math.inf
    ) -> None:
        if not values.numel():
            return
        # torch compares floats of these types on every processor; NaN if there is one.
        narrow = values.is_floating_point() and values.dtype not in (torch.float32, torch.float64)
        least, most = (end.item() for end in (values.float() if narrow else values).aminmax())
        if low <= least and most <= high and math.isfinite(least) and math.isfinite(most):
            return
        kind = "finite numbers" if values.is_floating_point() else "numbers"
        ends = [f" from {low}"] if low > -math.inf else []
        ends += [f" to {high}"] if high < math.inf else []
        got = most if low <= least and math.isfinite(least) else least
        raise ValueError(
            f"its tensor {self._shown(name)} should hold {kind}{''.join(ends)}, got {got}"
        )

    def _shown(self, name: str) -> str:
        full = self.prefix + name
        return full if full.isprintable() and len(full) <= 80 else repr(full[:80])


def tensor_header(path: Path) -> JsonObject:
    """The header of a safetensors file: the type, shape and place of each tensor, and metadata.

    Raises:
        ValueError: it is no such file, or has a header larger than goen reads.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > JSON_BYTES:
            raise ValueError(f"its header has {length:,} bytes, more than {JSON_BYTES:,}")
        return parse_object(file.read(length))


def read_tensors(path: Path, sha256: str | None = None) -> Tensors:
    """The tensors in a safetensors file, whose content has this hash if one is given.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is damaged, not such a file, of another hash, or larger than goen reads.
    """
    if not path.is_file():
        raise ValueError(f"{path.name} is missing, or not a file")
    size = path.stat().st_size
    if size > TENSOR_BYTES:
        raise ValueError(f"{path.name} has {size:,} bytes, more than {TENSOR_BYTES:,}")
    if sha256 is not None and (found := file_sha256(path)) != sha256:
        raise ValueError(
            f"it does not belong to its manifest (SHA-256 {found[:12]}…, expected {sha256[:12]}…): "
            "it is damaged or was exchanged; copy the folder again"
        )
    tensor_header(path)
    try:
        return Tensors(load_file(path))
    except (SafetensorError, ArithmeticError, LookupError, RuntimeError, TypeError) as error:
        raise ValueError(f"{path.name} is not a whole file of tensors ({error})") from error
