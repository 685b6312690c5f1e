"""The preprocessing of images that a config of another library describes, as goen does it.

goen stretches a whole picture to one size with a bilinear filter; see ``goen.read_image``. Where
a config asks for something else, the nearest is taken, and a message to the logger ``goen`` says
so:

- Another filter (bicubic) becomes bilinear.
- The resize of the shorter side, of which the middle is cropped then, becomes a stretch of the
  whole picture and the same crop. Of a square picture that is the same, up to a pixel where an
  odd number of them is left around the crop: timm and torchvision round the half to even.
"""

from logging import getLogger
from math import floor

from goen.errors import UsageError
from goen.features.preprocess import Preprocess
from goen.io.limits import check_image_size
from goen.io.manifest import Manifest

_log = getLogger(__name__)
_BILINEAR = 2  # in Pillow's numbers, which transformers writes
_STEPS = ("do_resize", "do_center_crop", "do_rescale", "do_normalize")
# These change no pixel of a picture that goen has read.
_WITHOUT_EFFECT = ("do_convert_rgb", "do_reduce_labels")
# ConvNeXt's config: from this size on the picture is stretched and not cropped.
_NEVER_CROPPED = 384
_LEVELS = 255
_LEVIT = "Levit"


def report_approximation(name: str, filter_name: str, *, proportional: bool) -> None:
    """Log which steps of a model's own preprocessing are replaced by the nearest that goen has.

    Args:
        name: of the model.
        filter_name: of the model's own resize.
        proportional: whether its own resize keeps the proportions of a picture.
    """
    if filter_name != "bilinear":
        _log.info(
            "%s resizes pictures with a %s filter; goen with a bilinear one.", name, filter_name
        )
    if proportional:
        _log.info(
            "%s keeps the proportions of a picture when it resizes; goen stretches the picture, "
            "which is the same for square ones.",
            name,
        )


def from_hugging_face(config: Manifest, name: str) -> Preprocess:
    """The preprocessing that a ``preprocessor_config.json`` of an image model describes.

    Args:
        config: the content of the file.
        name: of the model, for messages.

    Raises:
        ValueError: a field of another type.
        UsageError: a step that goen does not have, or images that are too large.

    Example:
        >>> config = Manifest({"size": {"height": 8, "width": 8}, "image_mean": [0.5]})
        >>> from_hugging_face(config, "a model")
        Preprocess(mean=(0.5,), std=None, size=(8, 8), crop=None)
    """
    other = [
        step
        for step, value in config.content.items()
        if step.startswith("do_") and value and step not in (*_STEPS, *_WITHOUT_EFFECT)
    ]
    if other:
        raise UsageError(
            f"The preprocessing of {name} has steps that goen does not: {', '.join(other)}. Give a "
            "function that does them (preprocess=, --preprocess)."
        )
    size, crop, proportional = _sizes(config)
    for sides in (size, crop):
        if sides is not None:
            check_image_size(*sides)
    if size is not None and crop is not None and (crop[0] > size[0] or crop[1] > size[1]):
        raise UsageError(
            f"The preprocessing of {name} crops pictures of {size[0]}×{size[1]} to "
            f"{crop[0]}×{crop[1]}: it pads them, or crops them first, which goen does not. Give a "
            "function that does it (preprocess=, --preprocess)."
        )
    mean, std = _scaling(config)
    resample = config.content.get("resample", _BILINEAR)
    filters = {0: "nearest", 1: "Lanczos", _BILINEAR: "bilinear", 3: "bicubic"}
    used = filters.get(resample, "different") if isinstance(resample, int) else "different"
    report_approximation(name, used if size else "bilinear", proportional=proportional)
    return Preprocess(mean, std, size, crop)


def _sizes(
    config: Manifest,
) -> tuple[tuple[int, int] | None, tuple[int, int] | None, bool]:
    """What pictures are stretched to, what is cropped of it, and whether that is an approximation.

    ``shortest_edge`` with a ``crop_pct`` c is the size of the crop, out of a picture 1/c as large.
    Of LeViT the picture is 256/224 as large, which its config does not say.
    """
    crop = None
    if config.flag("do_center_crop", False):
        crop, _ = _sides(config, "crop_size")
    if not config.flag("do_resize", "size" in config):
        return None, crop, False
    size, shortest = _sides(config, "size")
    if not shortest:
        return size, crop, False
    if _processor(config).startswith(_LEVIT):
        side = int(256 / 224 * size[0])
        return (side, side), crop, True
    share = config.number("crop_pct") if "crop_pct" in config else 1.0
    if not 0 < share <= 1:
        raise ValueError(f"its crop_pct should be above 0 and at most 1, got {share}")
    if "crop_pct" in config and crop is None:
        if size[0] >= _NEVER_CROPPED:
            return size, None, False
        crop = size
    side = floor(size[0] / share)
    return (side, side), crop, True


def _processor(config: Manifest) -> str:
    """The name of the class that wrote the config; empty if it does not say."""
    kinds = ("image_processor_type", "feature_extractor_type")
    return next((str(config.content[kind]) for kind in kinds if kind in config), "")


def _sides(config: Manifest, name: str) -> tuple[tuple[int, int], bool]:
    """(height, width), and whether the config names the shorter side alone."""
    value = config.content.get(name)
    if isinstance(value, int):  # as configs before 2022 have it
        side = config.count(name)
        return (side, side), False
    part = config.part(name)
    if "height" in part and "width" in part:
        return (part.count("height"), part.count("width")), False
    side = part.count("shortest_edge")
    return (side, side), True


def _scaling(config: Manifest) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """The mean and the standard deviation for images in [0, 1].

    The config's own are for pixels 0..255 times ``rescale_factor``, less 1 with
    ``rescale_offset``. ``include_top`` (EfficientNet) divides by the deviation a second time.
    """
    factor = config.number("rescale_factor") if "rescale_factor" in config else 1 / _LEVELS
    scale = _LEVELS * factor if config.flag("do_rescale", True) else float(_LEVELS)
    if not scale > 0:
        raise ValueError(f"its rescale_factor should be above 0, got {factor}")
    scale = 1.0 if abs(scale - 1) < 1e-9 else scale
    offset = 1.0 if config.flag("rescale_offset", False) else 0.0
    mean = std = None
    if config.flag("do_normalize", "image_mean" in config):
        mean = config.numbers("image_mean") if "image_mean" in config else None
        std = config.numbers("image_std") if "image_std" in config else None
    if std is not None and config.flag("include_top", False):
        std = tuple(value * value for value in std)
    if scale != 1 or offset:
        mean = tuple((value + offset) / scale for value in mean or (0.0,))
        std = tuple(value / scale for value in std or (1.0,))
    return mean, std
