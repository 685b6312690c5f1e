"""Images and labels in any form a user has them, as one stream of checked batches."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from goen.data.imageset import DIGEST, Digests, ImageSet, digest_images
from goen.errors import DataError, LeakError, UsageError
from goen.functional._rows import PIXEL_SLACK

Array: TypeAlias = Tensor | NDArray[Any]
Hashes: TypeAlias = NDArray[np.int64]
Batch: TypeAlias = tuple[Tensor, Tensor | None]
Images: TypeAlias = (
    ImageSet | Array | tuple[Array, Array] | Iterable[Array] | Iterable[tuple[Array, Array]]
)
"""An ImageSet, images ``(N, 3, H, W)``, a pair (images, labels), or an iterable of such batches."""

# torch has others, of 8 bits, that it can store but hardly compute with.
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class BatchStream:
    """Batches of images ``(n, 3, H, W)``, uint8 or floats in [0, 1], with their labels ``(n,)``.

    Attributes:
        name: for people.
        batches: starts the stream; an iterable of the user's is read once only.
        count: of images, if known.
        images: the set, if it is one.
        size: (height, width) that the images must have, if that is known.
        digests: hashes of the images: of all, or of what an iterable has given so far.
    """

    name: str
    batches: Callable[[], Iterator[Batch]]
    count: int | None = None
    images: ImageSet | None = None
    digests: Callable[[], Digests] = lambda: np.zeros(0, DIGEST)
    size: tuple[int, ...] | None = None

    def __iter__(self) -> Iterator[Batch]:
        size = self.size
        total = 0
        for images, labels in self.batches():
            batch = check_images(images)
            size = size or tuple(batch.shape[2:])
            if tuple(batch.shape[2:]) != size:
                raise UsageError(
                    f"{self.name}: images are all of one size, {size[0]}×{size[1]}; got "
                    f"{batch.shape[2]}×{batch.shape[3]}. Resize them before."
                )
            if labels is not None and labels.shape != (len(batch),):
                raise UsageError(
                    f"{self.name}: {len(batch)} images come with {len(batch)} labels, got labels "
                    f"of shape {tuple(labels.shape)}."
                )
            total += len(batch)
            yield batch, labels
        if not total:
            raise DataError(f"{self.name} has no images. A generator can be read only once.")


def as_stream(value: Images | BatchStream, name: str, batch_size: int) -> BatchStream:
    """The images that were given, as a stream.

    Raises:
        UsageError: something that holds no images.
    """
    if isinstance(value, BatchStream):
        return value
    check_batch_size(batch_size)
    if isinstance(value, ImageSet):

        def batches() -> Iterator[Batch]:
            for start in range(0, len(value), batch_size):
                rows = slice(start, start + batch_size)
                yield torch.from_numpy(value.read(rows)), torch.from_numpy(value.labels[rows])

        return BatchStream(value.name, batches, len(value), value, lambda: value.digests)
    if isinstance(value, (Tensor, np.ndarray)):
        return _from_arrays(name, value, None, batch_size)
    if isinstance(value, (tuple, list)) and len(value) == 2:
        images, labels = value
        # Two batches of images are no pair (images, labels): they are an iterable of batches.
        if _is_array(images) and _is_array(labels) and labels.ndim < 3:
            return _from_arrays(name, images, labels, batch_size)
    if isinstance(value, Dataset) and not isinstance(value, IterableDataset):
        raise _one_at_a_time(name)
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise UsageError(
            f"{name} is an ImageSet, images (N, 3, H, W), a pair (images, labels) or an iterable "
            f"of such batches, a DataLoader for one; got {type(value).__name__}."
        )
    return _from_iterable(name, value)


def check_batch_size(size: int) -> None:
    """Raise a UsageError if this is not a whole number of at least one image."""
    if not isinstance(size, int | np.integer) or size < 1:
        raise UsageError(f"A batch has at least one image, got a batch size of {size!r}.")


def _is_array(value: object) -> TypeGuard[Array]:
    return isinstance(value, (Tensor, np.ndarray))


def _count(value: Iterable[Any]) -> int | None:
    """How many images a DataLoader will give; its sampler may draw more or fewer than there are."""
    try:
        return len(value.batch_sampler.sampler)  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return None


def _from_iterable(name: str, value: Iterable[Any]) -> BatchStream:
    hashes: list[Digests] = []

    def batches() -> Iterator[Batch]:
        for item in value:
            images, labels = _batch(name, item)
            hashes.append(_digests(images))
            yield images, labels

    return BatchStream(
        name, batches, _count(value), digests=lambda: np.concatenate([np.zeros(0, DIGEST), *hashes])
    )


def _digests(images: Tensor) -> Digests:
    """A hash of each image, rounded to 8 bits: the same for uint8 and for floats of any type."""
    usable = images.dtype == torch.uint8 or images.dtype in _FLOATS
    if images.ndim != 4 or not usable:  # refused soon, with a sentence
        return np.zeros(0, DIGEST)
    pixels = images.detach().cpu()
    if pixels.is_floating_point():
        pixels = (pixels.double() * 255).nan_to_num().round().clamp(0, 255).to(torch.uint8)
    return digest_images(iter([pixels.contiguous().numpy()]))


def image_hashes(digests: Digests) -> Hashes:
    """A 64-bit hash of each different image, sorted: what a gate keeps of the images it used.

    Example:
        >>> image_hashes(np.array([b"0123456789abcdef", b"0123456789abcdef"], DIGEST)).shape
        (1,)
    """
    halves = np.frombuffer(np.ascontiguousarray(digests, DIGEST).tobytes(), "<i8")
    return np.unique(halves.reshape(-1, 2)[:, 0])


def _from_arrays(
    name: str, images: Tensor | NDArray[Any], labels: Tensor | NDArray[Any] | None, size: int
) -> BatchStream:
    if labels is not None and len(labels) != len(images):
        raise UsageError(f"{name}: {len(images)} images need as many labels, got {len(labels)}.")

    def batches() -> Iterator[Batch]:
        for start in range(0, len(images), size):
            rows = slice(start, start + size)
            yield _tensor(images[rows]), None if labels is None else _labels(labels[rows])

    @cache
    def digests() -> Digests:
        return np.concatenate([np.zeros(0, DIGEST), *(_digests(batch) for batch, _ in batches())])

    return BatchStream(name, batches, len(images), digests=digests)


def _tensor(images: Tensor | NDArray[Any]) -> Tensor:
    if isinstance(images, np.ndarray):
        try:
            images = torch.from_numpy(_native(images))
        except TypeError as error:
            raise UsageError(f"Images are uint8, or floats in [0, 1]; {error}") from error
    if images.is_nested or images.layout is not torch.strided or images.is_meta:
        kind = "nested" if images.is_nested else "meta" if images.is_meta else images.layout
        raise UsageError(f"Images are a dense tensor that holds values; got one that is {kind}.")
    return images


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
    if _is_array(item):
        return _tensor(item), None
    if not isinstance(item, (tuple, list)) or not item or not _is_array(item[0]):
        raise UsageError(
            f"{name} gives batches (images, labels) of arrays or tensors; got a "
            f"{type(item).__name__}."
        )
    images, labels = _tensor(item[0]), _labels(item[1]) if len(item) > 1 else None
    if images.ndim == 3 and (labels is None or labels.ndim == 0):
        raise _one_at_a_time(name)
    return images, labels


def _one_at_a_time(name: str) -> UsageError:
    return UsageError(
        f"{name} gives one image at a time. Wrap it: torch.utils.data.DataLoader({name}, "
        "batch_size=128)."
    )


def check_images(images: Tensor | NDArray[Any]) -> Tensor:
    """The images as a batch for the network, or an error that names what is wrong with them."""
    batch = _tensor(images)
    if batch.ndim == 3:
        batch = batch[None]
    if batch.ndim != 4 or batch.shape[1] != 3:
        raise UsageError(
            f"Images have shape (N, 3, H, W), channels first; got {tuple(batch.shape)}."
        )
    if batch.dtype == torch.uint8:
        return batch
    if batch.dtype not in _FLOATS:
        raise UsageError(f"Images are uint8, or floats in [0, 1]; got {batch.dtype}.")
    if not bool(torch.isfinite(batch).all()):
        bad = torch.nonzero(~torch.isfinite(batch).flatten(1).all(1)).flatten().tolist()
        raise UsageError(f"Images {bad[:10]} hold NaN or infinity. Leave them out.")
    if batch.numel() and not (batch.min() >= -PIXEL_SLACK and batch.max() <= 1 + PIXEL_SLACK):
        raise UsageError(
            f"Float images lie in [0, 1]; got {batch.min():.3g}..{batch.max():.3g}. Are they "
            "0-255 (then pass uint8), or normalised already (then pass them before that)?"
        )
    return batch.float()


def require_disjoint_streams(streams: Mapping[str, BatchStream]) -> None:
    """Refuse an image that is in two of these sets, compared after rounding to 8 bits.

    Of an iterable only the images read so far are known: check before the pass and after it.

    Raises:
        LeakError: naming both and the number of shared images.
    """
    hashed = {role: stream.digests() for role, stream in streams.items()}
    roles = list(hashed)
    for i, role in enumerate(roles):
        for other in roles[:i]:
            shared = len(np.intersect1d(hashed[role], hashed[other]))
            if shared:
                raise LeakError(
                    f"{role} shares {shared} of its {len(hashed[role])} images with {other}, "
                    "pixel for pixel. The training, held-out and OOD sets must be disjoint: leave "
                    "the shared images out of one of them."
                )
