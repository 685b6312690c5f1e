"""Inputs and labels in any form a user has them, as one stream of checked batches."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, combinations
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from goen.batch import LABEL_NAMES, Inputs, count_of, join_batches
from goen.data.images.decoding import image_batches
from goen.data.images.headers import read_image_size
from goen.data.imageset import DIGEST, Digests, ImageSet
from goen.data.input_spec import (
    InputsOption,
    InputSpec,
    TensorInputs,
    digest_inputs,
    find_input_spec,
)
from goen.data.sets.folders import (
    AS_THEY_ARE,
    ImageReading,
    Paths,
    are_paths,
    list_files,
    open_labelled,
)
from goen.errors import DataError, LeakError, UsageError

Array: TypeAlias = Tensor | NDArray[Any]
Hashes: TypeAlias = NDArray[np.int64]
Batch: TypeAlias = tuple[Inputs, Tensor | None]
Arrays: TypeAlias = Array | tuple[Array, ...] | Mapping[str, Array]
Images: TypeAlias = (
    ImageSet
    | Paths
    | Arrays
    | tuple[Arrays, Array]
    | Iterable[Arrays]
    | Iterable[tuple[Arrays, Array]]
)
"""An ImageSet, a folder of images, a file or a list of files, images ``(N, C, H, W)``, a pair
(images, labels), or an iterable of such batches.

In place of images, whatever the model takes: a tensor, a tuple or a dict of tensors. A tuple needs
its labels beside it, ``((a, b), labels)``. In a dict, ``labels`` (or ``label``) are the labels.
"""


@dataclass(frozen=True)
class BatchStream:
    """Batches of inputs with their labels ``(n,)``.

    Attributes:
        name: for people.
        batches: starts the stream; an iterable of the user's is read once only.
        count: of inputs, if known.
        images: the set, if it is one.
        digests: hashes of the inputs: of all, or of what an iterable has given so far.
        spec: what the inputs must be, if that is known; else what the first ones are.
        asked: what they are taken for.
    """

    name: str
    batches: Callable[[], Iterator[Batch]]
    count: int | None = None
    images: ImageSet | None = None
    digests: Callable[[], Digests] = lambda: np.zeros(0, DIGEST)
    spec: InputSpec | None = None
    asked: InputsOption = "auto"

    @property
    def are_images(self) -> bool:
        """Whether these are images, or may be as far as is known."""
        return self.asked != "tensors" and not isinstance(self.spec, TensorInputs)

    def __iter__(self) -> Iterator[Batch]:
        spec = self.spec
        total = 0
        for inputs, labels in self.batches():
            spec = spec or find_input_spec(inputs, self.asked, self.name)
            batch = spec.check(inputs, self.name)
            count = count_of(batch)
            if labels is not None and labels.shape != (count,):
                raise UsageError(
                    f"{self.name}: {count} images come with {count} labels, got labels of shape "
                    f"{tuple(labels.shape)}."
                )
            total += count
            yield batch, labels
        if not total:
            raise DataError(f"{self.name} has no images. A generator can be read only once.")


def as_stream(
    value: Images | BatchStream,
    name: str,
    batch_size: int,
    asked: InputsOption = "auto",
    reading: ImageReading = AS_THEY_ARE,
) -> BatchStream:
    """The inputs that were given, as a stream.

    Args:
        value: the inputs.
        name: for people, where the inputs have none of their own.
        batch_size: of all but iterables.
        asked: what they are taken for.
        reading: how files are read, if they are given as paths.

    Raises:
        UsageError: something that holds no inputs.
    """
    if isinstance(value, BatchStream):
        return value
    check_batch_size(batch_size)
    if isinstance(value, ImageSet):
        return _from_set(value, batch_size)
    if are_paths(value):
        if asked == "tensors":
            raise UsageError(f"{name}: files are read as images, and the inputs are tensors here.")
        return _from_paths(name, value, batch_size, reading)
    pair = _pair(value)
    # Two batches of images are no pair (images, labels): they are an iterable of batches.
    several = isinstance(value, (tuple, list)) and not (len(value) == 2 and _are_labels(value[1]))
    if pair is not None and not several:
        return _from_arrays(name, *pair, batch_size, asked)
    if isinstance(value, Dataset) and not isinstance(value, IterableDataset):
        raise _one_at_a_time(name)
    if isinstance(value, (bytes, Mapping)) or not isinstance(value, Iterable):
        raise UsageError(
            f"{name} is an ImageSet, a path or a list of paths, images (N, 3, H, W), a pair "
            "(images, labels) or an iterable of such batches, a DataLoader for one; got "
            f"{type(value).__name__}."
        )
    return _from_iterable(name, value, asked)


def first_inputs(stream: BatchStream) -> tuple[Inputs, BatchStream]:
    """The first two inputs or more, and the same stream with them still in it."""
    batches = iter(stream)
    held: list[Batch] = []
    for batch in batches:
        held.append(batch)
        if sum(count_of(inputs) for inputs, _ in held) > 1:
            break
    first = join_batches([inputs for inputs, _ in held])

    return first, replace(stream, batches=lambda: chain(held, batches))


def _from_set(images: ImageSet, batch_size: int) -> BatchStream:
    def batches() -> Iterator[Batch]:
        for start in range(0, len(images), batch_size):
            rows = slice(start, start + batch_size)
            yield tensors(images.read_inputs(rows)), torch.from_numpy(images.labels[rows])

    return BatchStream(images.name, batches, len(images), images, lambda: images.digests)


def _from_paths(name: str, paths: Paths, batch_size: int, reading: ImageReading) -> BatchStream:
    """A folder, stack or known set as a set; files one by one, which are read once only."""
    if isinstance(paths, str | Path) and (Path(paths).is_dir() or list_files(paths) is None):
        images, labelled = open_labelled(paths, reading)
        found = _from_set(images, batch_size)
        return found if labelled else _without_labels(found)
    return _from_files(name, list_files(paths) or [], batch_size, reading)


def _from_files(
    name: str, files: Sequence[Path], batch_size: int, reading: ImageReading
) -> BatchStream:
    size = reading.size or read_image_size(files[0], reading.pixel_format)
    arrays = image_batches(files, size, batch_size, reading.pixel_format)
    return replace(_from_iterable(name, arrays, "images"), count=len(files))


def _without_labels(found: BatchStream) -> BatchStream:
    return replace(found, batches=lambda: ((inputs, None) for inputs, _ in found.batches()))


def _pair(value: Any) -> tuple[Arrays, Any] | None:
    """Inputs and their labels, if any; ``None`` if it begins with no inputs."""
    if _is_array(value):
        return value, None
    if _is_dict(value):
        inputs = {name: part for name, part in value.items() if name not in LABEL_NAMES}
        return inputs, next((value[name] for name in LABEL_NAMES if name in value), None)
    if isinstance(value, (tuple, list)) and value and _is_inputs(value[0]):
        return value[0], value[1] if len(value) > 1 else None
    return None


def _are_labels(value: object) -> bool:
    if _is_array(value):
        return value.ndim < 3
    return isinstance(value, list) and all(isinstance(n, int | np.integer) for n in value)


def _is_dict(value: object) -> TypeGuard[Mapping[str, Array]]:
    return isinstance(value, Mapping) and bool(value) and all(map(_is_array, value.values()))


def _is_inputs(value: object) -> TypeGuard[Arrays]:
    several = isinstance(value, (tuple, list)) and bool(value) and all(map(_is_array, value))
    return _is_array(value) or _is_dict(value) or several


def check_batch_size(size: int) -> None:
    """Raise a UsageError if this is not a whole number of at least one image."""
    if not isinstance(size, int | np.integer) or size < 1:
        raise UsageError(f"A batch has at least one image, got a batch size of {size!r}.")


def _is_array(value: object) -> TypeGuard[Array]:
    return isinstance(value, (Tensor, np.ndarray)) and value.ndim > 0


def _count(value: Iterable[Any]) -> int | None:
    """How many images a DataLoader will give; its sampler may draw more or fewer than there are."""
    try:
        return len(value.batch_sampler.sampler)  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return None


def _from_iterable(name: str, value: Iterable[Any], asked: InputsOption) -> BatchStream:
    hashes: list[Digests] = []

    def batches() -> Iterator[Batch]:
        for item in value:
            inputs, labels = _batch(name, item)
            hashes.append(digest_inputs(inputs, asked))
            yield inputs, labels

    def digests() -> Digests:
        return np.concatenate([np.zeros(0, DIGEST), *hashes])

    return BatchStream(name, batches, _count(value), digests=digests, asked=asked)


def image_hashes(digests: Digests) -> Hashes:
    """A 64-bit hash of each different image, sorted: what a gate keeps of the images it used.

    Example:
        >>> image_hashes(np.array([b"0123456789abcdef", b"0123456789abcdef"], DIGEST)).shape
        (1,)
    """
    return np.unique(hash_of_each(digests))


def hash_of_each(digests: Digests) -> Hashes:
    """The same hashes of every image, in their order."""
    halves = np.frombuffer(np.ascontiguousarray(digests, DIGEST).tobytes(), "<i8")
    return halves.reshape(-1, 2)[:, 0]


def _from_arrays(
    name: str, arrays: Arrays, labels: Any, size: int, asked: InputsOption
) -> BatchStream:
    counts = [len(part) for part in _parts(arrays)]
    if len({*counts}) > 1:
        raise UsageError(f"{name}: each part has as many inputs as the others, got {counts}.")
    if labels is not None and len(labels) != counts[0]:
        raise UsageError(f"{name}: {counts[0]} images need as many labels, got {len(labels)}.")

    def batches() -> Iterator[Batch]:
        for start in range(0, counts[0], size):
            rows = slice(start, start + size)
            yield tensors(arrays, rows), None if labels is None else _labels(labels[rows])

    @cache
    def digests() -> Digests:
        found = (digest_inputs(batch, asked) for batch, _ in batches())
        return np.concatenate([np.zeros(0, DIGEST), *found])

    return BatchStream(name, batches, counts[0], digests=digests, asked=asked)


def _parts(arrays: Arrays) -> list[Array]:
    if isinstance(arrays, Mapping):
        return list(arrays.values())
    return [arrays] if _is_array(arrays) else list(arrays)


def is_batch(given: object, spec: InputSpec) -> TypeGuard[Arrays]:
    """Whether this is one batch of such inputs, not a set of them or a pair with labels."""
    if isinstance(given, (Tensor, np.ndarray)):
        return True
    if not isinstance(spec, TensorInputs):
        return False
    if spec.form == "dict":
        return isinstance(given, Mapping)
    several = isinstance(given, tuple) and len(given) == len(spec.parts)
    return spec.form == "tuple" and several


def pick_parts(given: Arrays, spec: InputSpec) -> Arrays:
    """Of a dict the parts that the model takes, in their order; loaders add labels and names."""
    if not isinstance(given, Mapping) or not isinstance(spec, TensorInputs):
        return given
    missing = [name for name in spec.parts if name not in given]
    if missing:
        raise UsageError(f"Inputs lack {', '.join(missing)}; they have {', '.join(given)}.")
    return {name: given[name] for name in spec.parts}


def tensors(arrays: Arrays, rows: slice = slice(None)) -> Inputs:
    """Arrays as tensors, or some rows of them, in the form that was given."""

    def rows_of(part: Array) -> Tensor:
        # Of an array the rows first: it may be mapped into memory, and larger than that.
        return _tensor(part)[rows] if isinstance(part, Tensor) else _tensor(part[rows])

    if isinstance(arrays, Mapping):
        return {str(name): rows_of(part) for name, part in arrays.items()}
    return rows_of(arrays) if _is_array(arrays) else tuple(map(rows_of, arrays))


def _tensor(values: Tensor | NDArray[Any]) -> Tensor:
    if isinstance(values, np.ndarray):
        try:
            values = torch.from_numpy(_native(values))
        except TypeError as error:
            raise UsageError(f"Images are uint8, uint16, or floats in [0, 1]; {error}") from error
    if values.is_nested or values.layout is not torch.strided or values.is_meta:
        kind = "nested" if values.is_nested else "meta" if values.is_meta else values.layout
        raise UsageError(f"Images are a dense tensor that holds values; got one that is {kind}.")
    return values


def _native(values: NDArray[Any]) -> NDArray[Any]:
    """The same values in a form that torch takes: most of them are not copied.

    torch takes no negative strides (BGR reversed to RGB) and no bytes in the order of another
    machine (FITS files), and warns of arrays that may not be written to (those of Pillow).
    """
    if np.ma.is_masked(values):
        raise UsageError(
            "An array has masked values, and goen would see what is below the mask. Fill them in "
            "(array.filled(0)), or leave these images out."
        )
    if not values.dtype.isnative:
        return values.astype(values.dtype.newbyteorder("="))
    usable = values.flags.writeable and min(values.strides, default=0) >= 0
    return values if usable else values.copy()


def _labels(labels: Any) -> Tensor | None:
    """Labels as a tensor; ``None`` for what is not numbers, such as file names."""
    if isinstance(labels, Tensor):
        return labels
    try:
        return torch.from_numpy(_native(np.asanyarray(labels)))
    except UsageError:  # a ValueError as well
        raise
    except (TypeError, ValueError, RuntimeError):
        return None


def _batch(name: str, item: Any) -> Batch:
    pair = _pair(item)
    if pair is None:
        raise UsageError(
            f"{name} gives batches (images, labels) of arrays or tensors; got "
            f"{type(item).__name__}."
        )
    inputs, labels = tensors(pair[0]), None if pair[1] is None else _labels(pair[1])
    image = isinstance(inputs, Tensor) and inputs.ndim == 3 and inputs.dtype == torch.uint8
    alone = image and labels is None and not _is_array(item)
    if alone or (labels is not None and not labels.ndim):
        raise _one_at_a_time(name)
    return inputs, labels


def _one_at_a_time(name: str) -> UsageError:
    return UsageError(
        f"{name} gives one image at a time. Wrap it: torch.utils.data.DataLoader({name}, "
        "batch_size=128)."
    )


def require_disjoint_streams(streams: Mapping[str, BatchStream]) -> None:
    """Refuse an input that is in two of these sets; images are compared by their digests.

    Of an iterable only the images read so far are known: check before the pass and after it.

    Raises:
        LeakError: naming both and the number of shared images.
    """
    hashed = {role: stream.digests() for role, stream in streams.items()}
    for other, role in combinations(streams, 2):
        shared = len(np.intersect1d(hashed[role], hashed[other]))
        if shared:
            what, how = ("images", "pixel") if streams[role].are_images else ("inputs", "value")
            raise LeakError(
                f"{role} shares {shared} of its {len(hashed[role])} {what} with {other}, {how} for "
                f"{how}. The training, held-out and OOD sets must be disjoint: leave the shared "
                f"{what} out of one of them."
            )
