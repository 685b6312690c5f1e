"""What a protocol makes of its own images: the parts of the validation images, and OOD images."""

from goen.data.images.pixel_format import Bits
from goen.data.imageset import ImageSet
from goen.data.protocols.plan import AUGMENTED, NOISE
from goen.data.sets.embedded import noise
from goen.data.transforms.strong import strongly_augmented

# One seed for every split and all noise: changing the training seed must not change the data.
SPLIT_SEED = 42
VALIDATION_SEED = 7
MOST_GENERATED = 5_000
"""Images of a kind: they are in memory."""


def validation_parts(validation: ImageSet) -> dict[str, ImageSet]:
    """Three fifths for calibration, two fifths for the threshold (``held-out``)."""
    kept = len(validation) * 2 // 5
    sizes = {"calibration": len(validation) - kept, "held-out": kept}
    return validation.split(sizes, VALIDATION_SEED)


def augmented(validation: ImageSet, at_most: int | None = None) -> ImageSet:
    """Of the images that calibrate with every budget: never of one that sets a threshold."""
    calibration = validation_parts(validation)["calibration"]
    calibration = calibration.take(range(len(calibration))[:at_most])
    return strongly_augmented(calibration, SPLIT_SEED).without(validation)


def noise_like(images: ImageSet, count: int, stream: int) -> ImageSet:
    """At most so many images of noise, of the size and format of these."""
    bits: Bits = 8 if images.pixels.dtype == "uint8" else 16
    return noise(min(count, MOST_GENERATED), SPLIT_SEED, stream, images.image_shape, bits)


def generated_calibration(
    train: ImageSet, validation: ImageSet, test: ImageSet
) -> dict[str, ImageSet]:
    """Noise and strong augmentations, as many of each as there are ID images that calibrate."""
    changed = augmented(validation, MOST_GENERATED).without(train, test)
    count = len(validation_parts(validation)["calibration"])
    sets = {NOISE: noise_like(train, count, stream=1), AUGMENTED: changed}
    return {name: images for name, images in sets.items() if len(images)}
