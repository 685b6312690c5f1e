"""Preprocessing of images for a user's own model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from goen.batch import Inputs, count_of, map_parts, parts_of
from goen.errors import UsageError
from goen.functional._rows import PIXEL_SLACK

# By how much more images may leave [0, 1] within ``perturbed_by``.
_step: ContextVar[float] = ContextVar("step", default=0.0)

Preprocessing = Callable[[Tensor], Tensor]
TappedInputs = Literal["images", "tensors"]
InputPreprocessing = Callable[[Any], Any]
"""Of inputs that are no images: whatever the model takes to whatever it takes."""
WAVEFORMS = "input_values"
"""What the models of Hugging Face call waveforms."""

# As in transformers: silence stays silence.
_LEAST_VARIANCE = 1e-7


@dataclass(frozen=True)
class Preprocess:
    """Resizes images in [0, 1] to one size, crops their middle, then normalises each channel.

    Plain values, so that it can be saved beside the model; for anything else (grey from colour,
    another filter) give a function of a float batch ``(N, C, H, W)`` in [0, 1] in its place.

    Attributes:
        mean: subtracted from each channel, one number for each or for all; none without it.
        std: then divided by; none without it.
        size: one number for both sides or (height, width). The whole image is stretched to it,
            bilinear and anti-aliased (as Pillow does it, without rounding to whole grey levels).
        crop: one number for both sides or (height, width) of the middle that is kept, after the
            resize.

    Example:
        >>> Preprocess(mean=(0.5,), std=(0.25,), size=1)(torch.tensor([[[[0.0, 1.0]]]])).item()
        0.0
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    size: int | tuple[int, int] | None = None
    crop: int | tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, _numbers(name, values))
        if self.std is not None and not all(0 < value < float("inf") for value in self.std):
            got = " ".join(map(str, self.std))
            raise UsageError(f"std is one positive number per channel, got {got}.")
        for name in ("size", "crop"):
            value = getattr(self, name)
            if value is not None and min(_sides(value)) < 1:
                raise UsageError(f"{name} is a number of pixels or (height, width), got {value!r}.")

    @property
    def read_image_size(self) -> tuple[int, int] | None:
        """(height, width) of images that need no resize; ``None`` if any size will do."""
        return None if self.size is None else _sides(self.size)

    def __call__(self, images: Tensor) -> Tensor:
        """Float images ``(N, C, H, W)`` in [0, 1] as the model needs them."""
        if self.size is not None and tuple(images.shape[2:]) != _sides(self.size):
            images = interpolate(
                images, _sides(self.size), mode="bilinear", align_corners=False, antialias=True
            )
        if self.crop is not None:
            images = _middle(images, _sides(self.crop))
        if self.mean is not None:
            images = images - _per_channel("mean", self.mean, images)
        return images if self.std is None else images / _per_channel("std", self.std, images)


@dataclass(frozen=True)
class PreprocessSound:
    """Gives each waveform mean 0 and variance 1, as wav2vec 2.0 and its kin need them.

    Waveforms that are so already stay as they are, up to rounding.

    Attributes:
        sampling_rate: of the waveforms, in Hz. goen does not resample.
        normalise: whether it does anything.

    Example:
        >>> PreprocessSound(16_000)(torch.tensor([[1.0, 3.0]]))
        tensor([[-1.,  1.]])
    """

    sampling_rate: int
    normalise: bool = True

    def __call__(self, inputs: Inputs) -> Inputs:
        """Waveforms ``(N, T)``, or a dict that has them as ``input_values``.

        Where its ``attention_mask`` ``(N, T)`` is 0 a waveform is only filled up: these values
        count for nothing and become 0.
        """
        if not self.normalise:
            return inputs
        if isinstance(inputs, dict) and WAVEFORMS in inputs:
            mask = inputs.get("attention_mask")
            return {**inputs, WAVEFORMS: _standardised(inputs[WAVEFORMS], mask)}
        if not isinstance(inputs, Tensor):
            raise UsageError(
                f"Waveforms are one tensor (N, T), or {WAVEFORMS!r} in a dict; got a "
                f"{type(inputs).__name__} with {', '.join(parts_of(inputs))}."
            )
        return _standardised(inputs, None)


def _standardised(waves: Tensor, mask: Tensor | None) -> Tensor:
    weights = torch.ones_like(waves) if mask is None else mask.to(waves)
    count = weights.sum(1, keepdim=True).clamp_min(1)
    centred = (waves - (waves * weights).sum(1, keepdim=True) / count) * weights
    return centred / (centred.square().sum(1, keepdim=True) / count + _LEAST_VARIANCE).sqrt()


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    """One number for each channel, or one for all."""
    try:
        return (float(values),) if isinstance(values, Real) else tuple(map(float, values))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{name} is one number for each channel, or one for all; got {values!r}."
        ) from error


def _sides(size: Any) -> tuple[int, int]:
    """(height, width), or zeros for what is neither a number nor two."""
    try:
        sides = (int(size), int(size)) if isinstance(size, Integral) else tuple(map(int, size))
    except (TypeError, ValueError):
        return 0, 0
    return (sides[0], sides[1]) if len(sides) == 2 else (0, 0)


def _middle(images: Tensor, sides: tuple[int, int]) -> Tensor:
    (height, width), (rows, columns) = images.shape[2:], sides
    if rows > height or columns > width:
        raise UsageError(f"Images of {height}×{width} cannot be cropped to {rows}×{columns}.")
    top, left = (height - rows) // 2, (width - columns) // 2
    return images[:, :, top : top + rows, left : left + columns]


def _per_channel(name: str, values: tuple[float, ...], images: Tensor) -> Tensor:
    if len(values) not in (1, images.shape[1]):
        raise UsageError(
            f"{name} has {len(values)} values, but the images have {images.shape[1]} channels. "
            "Give one per channel, or one for all."
        )
    return torch.tensor(values, dtype=images.dtype, device=images.device).view(1, -1, 1, 1)


@contextmanager
def perturbed_by(step: float) -> Iterator[None]:
    """Within this block, in this thread, images may leave [0, 1] by ``step``, as ODIN's do."""
    before = _step.set(step)
    try:
        yield
    finally:
        _step.reset(before)


def prepare(
    inputs: Inputs,
    preprocess: Preprocessing | InputPreprocessing | None,
    dtype: torch.dtype,
    kind: TappedInputs | Literal["auto"],
) -> Inputs:
    """The inputs for a model of this dtype; with ``auto``, one tensor of four axes is images.

    Raises:
        UsageError: images that are none, or preprocessing that gives no batch of as many.
    """
    has_four_axes = isinstance(inputs, Tensor) and inputs.ndim == 4
    if kind == "tensors" or (kind == "auto" and not has_four_axes):
        return _prepare_tensors(inputs, preprocess, dtype)
    if not isinstance(inputs, Tensor):
        raise UsageError(f"Images are one tensor (N, C, H, W), got a {type(inputs).__name__}.")
    return prepare_images(inputs, preprocess, dtype)


def prepare_images(images: Tensor, preprocess: Preprocessing | None, dtype: torch.dtype) -> Tensor:
    """A new tensor of this dtype for the model, from whole-number images or floats in [0, 1].

    Preprocessing is done in float32 or better, whatever the model's own precision. The caller's
    images stay as they are even if the model works in place.

    Raises:
        UsageError: images of another type, shape or range, or preprocessing that gives no batch.
    """
    _check(images)
    working = torch.promote_types(dtype, torch.float32)
    x = images.to(working, copy=True)
    if not images.is_floating_point():
        x /= 255 if images.dtype == torch.uint8 else 65535
    if preprocess is None:
        return x.to(dtype)
    out = preprocess(x)
    if not isinstance(out, Tensor) or not out.ndim or out.shape[0] != images.shape[0]:
        what = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise UsageError(
            f"preprocess is given a batch {tuple(images.shape)} and must return one of as many "
            f"images; it returned {what}."
        )
    return out.to(dtype)


def _prepare_tensors(
    inputs: Inputs, preprocess: InputPreprocessing | None, dtype: torch.dtype
) -> Inputs:
    """The inputs as they are, floats in this dtype; a copy, in case the model works in place.

    Raises:
        UsageError: preprocessing that gives no batch of as many inputs.
    """
    copies = map_parts(torch.clone, inputs)
    out = copies if preprocess is None else preprocess(copies)
    parts = list(parts_of(out).values()) if isinstance(out, (Tensor, tuple, dict)) else []
    fits = all(isinstance(part, Tensor) and part.shape[:1] == (count_of(inputs),) for part in parts)
    if not parts or not fits:
        raise UsageError(
            f"preprocess is given a batch of {count_of(inputs)} inputs and must return one of as "
            f"many, a tensor, tuple or dict; it returned a {type(out).__name__}."
        )
    return map_parts(lambda part: part.to(dtype) if part.is_floating_point() else part, out)


def _check(images: Tensor) -> None:
    if images.ndim != 4:
        raise UsageError(
            f"Images have shape (N, C, H, W), channels first; got {tuple(images.shape)}."
        )
    if images.dtype in (torch.uint8, torch.uint16):
        return
    if not images.is_floating_point():
        raise UsageError(f"Images are uint8, uint16, or floats in [0, 1]; got {images.dtype}.")
    # A traced program cannot depend on values; the exporter checks before calling it.
    if torch.compiler.is_compiling() or not images.numel():
        return
    low, high = (float(value) for value in images.detach().aminmax())
    slack = PIXEL_SLACK + _step.get()
    if not (low >= -slack and high <= 1 + slack):
        raise UsageError(
            f"Float images lie in [0, 1]; got {low:.3g}..{high:.3g}. Are they 0-255 (then pass "
            "uint8), normalised already (then pass them before that), or is there NaN in them?"
        )
