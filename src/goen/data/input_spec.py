"""What a gate takes: images of one shape, or tensors that go into the model as they are."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from goen.batch import Inputs, count_of, parts_of
from goen.data.images.pixel_format import COLOUR, Bits, PixelFormat
from goen.data.imageset import DIGEST, Digests, digest_images
from goen.errors import UsageError
from goen.functional._rows import PIXEL_SLACK

InputsOption = Literal["auto", "images", "tensors"]
Form = Literal["tensor", "tuple", "dict"]
Dtype = Literal["float", "int", "bool"]

# Two inputs of a fixed pattern are written with a gate's network, to compare its outputs later.
_PROBES = 2
_PERIOD = 251
_MOST_COLOURS = 4
_PIXELS = (torch.uint8, torch.uint16)
# torch has others, of 8 bits, that it can store but hardly compute with.
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class ImageInputs:
    """Images of one shape: uint8, uint16, or floats in [0, 1].

    Attributes:
        channels: 3 for colour, 1 for grey, or as many bands as there are.
        height: in pixels.
        width: in pixels.
        bits: to which images are decoded, and of the images that an exported gate takes: 16 for
            a gate that was fitted on uint16, else 8. Arrays of any depth are taken.
    """

    channels: int
    height: int
    width: int
    bits: Bits = 8

    @classmethod
    def of(cls, batch: Inputs) -> Self:
        """What these images have in common."""
        images = check_images(batch)
        channels, height, width = images.shape[1:]
        return cls(channels, height, width, 16 if images.dtype == torch.uint16 else 8)

    @property
    def pixel_format(self) -> PixelFormat:
        """Channels and bits."""
        return PixelFormat(self.channels, self.bits)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        return self.height, self.width

    def __str__(self) -> str:
        pixels = "" if self.pixel_format == COLOUR else f", {self.pixel_format}"
        return f"images of {self.height}×{self.width}{pixels}"

    def check(self, batch: Inputs, name: str) -> Tensor:
        """The images, float32 or whole numbers.

        Raises:
            UsageError: no images, or images of another shape or range.
        """
        images = check_images(batch, self.channels)
        if tuple(images.shape[2:]) != self.size:
            raise UsageError(
                f"{name}: images are all of one size, {self.height}×{self.width}; got "
                f"{images.shape[2]}×{images.shape[3]}. Resize them before: the guarantee of a gate "
                "holds at one size only."
            )
        return images

    def pattern(self) -> Tensor:
        """Two images of a fixed pattern."""
        return _pattern(self.channels, self.height, self.width)


@dataclass(frozen=True)
class TensorPart:
    """One tensor of the inputs.

    Attributes:
        dtype: ``float``, ``int`` or ``bool``.
        sizes: of the first inputs, without the axis of the batch. Others may have other sizes,
            such as texts of another length; the number of axes is the same.
    """

    dtype: Dtype
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, part: Tensor) -> Self:
        """What these inputs have in common."""
        if part.is_complex():
            raise UsageError(
                "Inputs are real numbers; got complex ones. Give their parts as channels."
            )
        whole: Dtype = "bool" if part.dtype == torch.bool else "int"
        return cls("float" if part.is_floating_point() else whole, tuple(part.shape[1:]))

    def __str__(self) -> str:
        return f"{self.dtype} ({', '.join(['N', *map(str, self.sizes)])})"

    def pattern(self) -> Tensor:
        """Two inputs of a fixed pattern: small floats, ones, or true."""
        if self.dtype != "float":
            dtype = torch.int64 if self.dtype == "int" else torch.bool
            return torch.ones(_PROBES, *self.sizes, dtype=dtype)
        return _pattern(*self.sizes) / _PERIOD - 0.5


@dataclass(frozen=True)
class TensorInputs:
    """Tensors that go into the model as they are: sound, text, tables, or several of them.

    Attributes:
        form: one tensor, a tuple (several arguments) or a dict (arguments by name).
        parts: each tensor by its name; see ``parts_of``.
    """

    form: Form
    parts: Mapping[str, TensorPart]

    @classmethod
    def of(cls, batch: Inputs) -> Self:
        """What these inputs have in common."""
        form: Form = "tensor" if isinstance(batch, Tensor) else "tuple"
        form = "dict" if isinstance(batch, dict) else form
        return cls(form, {name: TensorPart.of(part) for name, part in parts_of(batch).items()})

    def __str__(self) -> str:
        return f"tensors {', '.join(f'{name} {part}'.strip() for name, part in self.parts.items())}"

    def check(self, batch: Inputs, name: str) -> Inputs:
        """The inputs as they are.

        Raises:
            UsageError: other parts, another number of axes or type, or parts of different numbers
                of inputs.
        """
        found = type(self).of(batch)
        same = (found.form, found.parts.keys()) == (self.form, self.parts.keys()) and all(
            (found.parts[part].dtype, len(found.parts[part].sizes)) == (own.dtype, len(own.sizes))
            for part, own in self.parts.items()
        )
        if not same:
            raise UsageError(f"{name}: inputs are {self}; got {found}.")
        for part_name, part in parts_of(batch).items():
            what = f"{name} {part_name}".strip()
            if len(part) != count_of(batch):
                raise UsageError(
                    f"{what} has {len(part)} inputs where another part has {count_of(batch)}."
                )
        return batch

    def pattern(self) -> Inputs:
        """Two inputs of a fixed pattern."""
        return self.formed({name: part.pattern() for name, part in self.parts.items()})

    def formed(self, parts: dict[str, Tensor]) -> Inputs:
        """These parts, in their order, as the model takes them."""
        if self.form == "dict":
            return parts
        return parts[""] if self.form == "tensor" else tuple(parts.values())


InputSpec: TypeAlias = ImageInputs | TensorInputs


def _pattern(*sizes: int) -> Tensor:
    """Two inputs of whole numbers below ``_PERIOD``."""
    count = _PROBES * math.prod(sizes)
    values = (torch.arange(_PERIOD) * 97 % _PERIOD).to(torch.uint8)
    return values.repeat(-(-count // _PERIOD))[:count].view(_PROBES, *sizes)


def looks_like_images(batch: Inputs) -> TypeGuard[Tensor]:
    """Whether these are images unless something else is said: pixels or floats, four axes."""
    return isinstance(batch, Tensor) and batch.ndim == 4 and batch.dtype in (*_PIXELS, *_FLOATS)


def find_input_spec(batch: Inputs, asked: InputsOption, name: str) -> InputSpec:
    """What these inputs are: images where they look like images, unless something else is asked.

    Raises:
        UsageError: they are neither.
    """
    if asked == "images":
        return ImageInputs.of(batch)
    if asked == "auto" and isinstance(batch, Tensor):
        if batch.ndim == 4:
            return ImageInputs.of(batch)
        if batch.dtype == torch.uint8:
            raise UsageError(
                f"{name}: images have shape (N, C, H, W), channels first; got "
                f"{tuple(batch.shape)}. Grey images have one channel: images[:, None]. For inputs "
                "that are no images, inputs='tensors'."
            )
    return TensorInputs.of(batch)


def check_images(images: Inputs, channels: int | None = None) -> Tensor:
    """The images as a batch for the network, or an error that names what is wrong with them.

    Args:
        images: ``(N, C, H, W)``, or one ``(C, H, W)``.
        channels: how many there must be, if that is known.
    """
    if not isinstance(images, Tensor):
        raise UsageError(f"Images are one tensor (N, C, H, W), got a {type(images).__name__}.")
    batch = images[None] if images.ndim == 3 else images
    wanted = "C" if channels is None else channels
    fits = batch.ndim == 4 and batch.shape[1] == (channels or batch.shape[1])
    if not fits or (channels is None and _is_channels_last(batch.shape)):
        raise UsageError(
            f"Images have shape (N, {wanted}, H, W), channels first; got {tuple(batch.shape)}."
        )
    if batch.dtype in _PIXELS:
        return batch
    if batch.dtype not in _FLOATS:
        raise UsageError(
            f"Images are uint8, uint16, or floats in [0, 1]; got {batch.dtype}. For inputs that "
            "are no images, inputs='tensors'."
        )
    if batch.numel():
        _check_range(batch)
    return batch.float()


def _check_range(batch: Tensor) -> None:
    """Raise a UsageError unless all values lie in [0, 1]: one pass, more where some do not."""
    low, high = batch.aminmax()  # NaN if there is one
    if low >= -PIXEL_SLACK and high <= 1 + PIXEL_SLACK:
        return
    bad = torch.nonzero(~torch.isfinite(batch).flatten(1).all(1)).flatten().tolist()
    if bad:
        raise UsageError(f"Images {bad[:10]} hold NaN or infinity. Leave them out.")
    raise UsageError(
        f"Float images lie in [0, 1]; got {low:.3g}..{high:.3g}. Are they 0-255 (then pass "
        "uint8), normalised already (then pass them before that), or no images (then "
        "inputs='tensors')?"
    )


def _is_channels_last(shape: Sequence[int]) -> bool:
    """Whether this looks like ``(N, H, W, C)``: images are not as narrow as a pixel is deep."""
    return shape[1] > _MOST_COLOURS >= shape[3]


def digest_inputs(batch: Inputs, asked: InputsOption) -> Digests:
    """A hash of each input, as ``digest_pixels`` has it for images, else ``digest_tensors``."""
    if asked != "tensors" and looks_like_images(batch):
        return digest_pixels(batch)
    return digest_tensors(batch)


def digest_pixels(images: Tensor) -> Digests:
    """A hash of each image, the same for whole numbers and for floats that are shares of white.

    Floats are rounded to 8 bits where that changes no more than their own rounding, else to 16.
    """
    pixels = images.detach().cpu()
    if pixels.is_floating_point():
        pixels = _as_16_bits(pixels)
    return digest_images(iter([pixels.contiguous().numpy()]))


def _as_16_bits(images: Tensor) -> Tensor:
    """Float images as uint16; those of 8 bits, such as uint8 / 255, as multiples of 257."""
    rounding = max(1e-3, 255 * torch.finfo(images.dtype).eps)
    values = images.double().nan_to_num().clamp(0, 1)
    short = (values * 255).round()
    is_short = ((values * 255 - short).abs() <= rounding).flatten(1).all(dim=1)
    fine = (values * 65535).round()
    return torch.where(is_short[:, None, None, None], 257 * short, fine).to(torch.uint16)


def digest_tensors(batch: Inputs) -> Digests:
    """A hash of each input, all its tensors together.

    Floats are float32, unless that would change one of the tensor's values of this input: what is
    different stays different, and one value is one in every precision.

    Example:
        >>> one = digest_tensors({"x": torch.tensor([[1.0], [2.0]]), "n": torch.tensor([1, 2])})
        >>> two = digest_tensors({"x": torch.tensor([[2.0]]).double(), "n": torch.tensor([2])})
        >>> bool(one[1] == two[0]), bool(one[0] == two[0])
        (True, False)
    """
    parts = {name: _exact_rows(part.detach().cpu()) for name, part in parts_of(batch).items()}
    digests = bytearray()
    for row in range(count_of(batch)):
        content = hashlib.blake2b(digest_size=DIGEST.itemsize)
        for name, (short, long, fits) in parts.items():
            values = short[row] if fits[row] else long[row]
            content.update(repr((name, values.dtype.str, values.shape)).encode())
            content.update(values.tobytes())
        digests += content.digest()
    return np.frombuffer(bytes(digests), dtype=DIGEST)


def _exact_rows(values: Tensor) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Values as float32 and as float64, and of which inputs both are the same; else as int64."""
    if not values.is_floating_point():
        whole = values.to(torch.int64).contiguous().numpy()
        return whole, whole, np.ones(len(whole), dtype=bool)
    long = values.to(torch.float64) + 0.0  # -0.0 is 0.0
    short = long.float()
    same = (short.double() == long) | long.isnan()
    fits = same.reshape(len(values), math.prod(values.shape[1:])).all(dim=1)
    return short.contiguous().numpy(), long.contiguous().numpy(), fits.numpy()
