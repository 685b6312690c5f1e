"""Test images under a covariate shift, which are ID all the same: full-spectrum evaluation."""

from dataclasses import replace
from itertools import product

import numpy as np

from goen.data.feature_set import FeatureSet
from goen.data.imageset import ImageSet
from goen.data.protocol import Protocol
from goen.data.transforms.corruptions import CORRUPTIONS, SEVERITIES, corrupt_any
from goen.errors import UsageError


def full_spectrum(protocol: Protocol, seed: int = 0) -> Protocol:
    """The protocol with half of its test images corrupted, each in a way of its own.

    They are drawn at random, and so are the corruption, one of fifteen, and the severity of each.
    No image is there twice, so that the test images stay independent draws, of a mixture.

    Args:
        protocol: of images.
        seed: of the draw.

    Raises:
        UsageError: the protocol holds features, or images that are neither colour nor grey.
    """
    test = protocol.test
    if isinstance(test, FeatureSet) or test.image_shape[0] not in (1, 3):
        raise UsageError(
            "Full-spectrum evaluation corrupts test images, colour or grey; "
            f"{test.name} has {test.image_shape[0]} channels, or holds features."
        )
    rng = np.random.default_rng(seed)
    pixels = np.array(test.read())
    shifted = rng.permutation(len(test))[: len(test) // 2]
    kinds = list(product(CORRUPTIONS, SEVERITIES))
    chosen = rng.integers(0, len(kinds), len(shifted))
    for number, (name, severity) in enumerate(kinds):
        rows = shifted[chosen == number]
        if len(rows):
            pixels[rows] = corrupt_any(pixels[rows], name, severity)
    images = ImageSet(f"{test.name}, half corrupted", pixels, test.labels, test.classes)
    return replace(protocol, name=f"{protocol.name}-fs", test=images)
