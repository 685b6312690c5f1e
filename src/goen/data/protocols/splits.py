"""A split of labelled images by their content, the same however files are named or ordered."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from goen.checks import check_number
from goen.data.imageset import Digests, Labels
from goen.errors import UsageError

Rows = NDArray[np.int64]
VALIDATION, TEST = "validation", "test"
# A threshold at a false-alarm rate of 5 % needs 19 images, two fifths of these.
_FEWEST_VALIDATION, _FEWEST_TEST = 50, 20
_USUAL, _LARGEST_VALIDATION, _LARGEST_TEST = 0.15, 0.5, 0.2


def usual_shares(count: int) -> dict[str, float]:
    """The shares of validation and test images of a set of so many.

    15 % each; of less than 334 images more for validation, up to a half, so that there are enough
    for a threshold, and of less than 134 more for the test, up to a fifth.

    Example:
        >>> usual_shares(10_000), usual_shares(200)["validation"]
        ({'validation': 0.15, 'test': 0.15}, 0.25)
    """
    fewest = {VALIDATION: _FEWEST_VALIDATION, TEST: _FEWEST_TEST}
    largest = {VALIDATION: _LARGEST_VALIDATION, TEST: _LARGEST_TEST}
    return {
        part: min(max(_USUAL, few / max(count, 1)), largest[part]) for part, few in fewest.items()
    }


def check_shares(shares: Mapping[str, float]) -> None:
    """Raise a UsageError unless each share lies between 0 and 1 and some images are left."""
    for part, share in shares.items():
        check_number(f"The share of {part} images", share, above=0, below=1)
    if sum(shares.values()) >= 1:
        given = ", ".join(f"{part} {share:g}" for part, share in shares.items())
        raise UsageError(f"The shares leave no images for training: {given}.")


def split_by_content(
    content: Digests, labels: Labels, shares: Mapping[str, float]
) -> dict[str, Rows]:
    """The rows of each part, and those that are left over (``train``), in their order.

    Within each class the different images are ordered by their hash, and each part takes as many of
    them as its share, rounded up: the first part the first ones. So every class is in every part,
    copies of an image are in one part, renaming or reordering files changes nothing, and adding
    files moves only images near the ends of a part. A class with fewer different images than there
    are parts is in ``train`` alone.

    Args:
        content: ``(N,)`` hashes.
        labels: ``(N,)``.
        shares: of each part but ``train``; see ``check_shares``.

    Example:
        >>> hashes = np.array([b"b", b"d", b"a", b"c", b"a"], "S16")
        >>> parts = split_by_content(hashes, np.zeros(5, np.int64), {"test": 0.25})
        >>> {part: rows.tolist() for part, rows in parts.items()}
        {'test': [2, 4], 'train': [0, 1, 3]}
    """
    part_of = np.full(len(content), len(shares))
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        different, rank = np.unique(content[rows], return_inverse=True)
        if len(different) <= len(shares):
            continue
        part_of[rows] = np.searchsorted(_ends(len(different), shares), rank, side="right")
    names = [*shares, "train"]
    return {name: np.flatnonzero(part_of == number) for number, name in enumerate(names)}


def _ends(count: int, shares: Mapping[str, float]) -> list[int]:
    """Where the parts end among so many images: one image or more is left for each of the others"""
    ends, done = [], 0
    for number, share in enumerate(shares.values()):
        left_for_others = len(shares) - number
        # Rounded first: 0.15 of 20 images is 3, not 3 and a little.
        done += min(math.ceil(round(share * count, 9)), count - done - left_for_others)
        ends.append(done)
    return ends
