"""Strong augmentations: ID images changed so much that they calibrate as OOD images."""

import numpy as np

from goen.data.imageset import ImageSet, Pixels

# The squares of a puzzle, along each side; four by four, as the finer of Sinha et al.'s.
_GRID = 4
_GREY = 128


def strongly_augmented(images: ImageSet, seed: int) -> ImageSet:
    """Each image as a puzzle in another order, or turned with a large square cut out of it.

    A fair coin decides. The puzzle has sixteen squares in random order. The turn is by 90, 180 or
    270 degrees, and the square, mid-grey, has half the side of the image. Local texture stays, the
    object does not: OOD images that look like the ID images, from the ID images alone.

    What happens to an image depends on its content and the seed, not on its place in the set. An
    image that comes out as it went in (one of a single colour) is left out.

    Source: Sinha et al., Negative Data Augmentation (2021), take puzzles, cutout and others for OOD
    images; Tack et al., CSI (2020), find turns and puzzles the best of such shifts on CIFAR-10. The
    square is that of DeVries and Taylor, Cutout (2017). Departs from them: the turn and the square
    come together, and the network is not trained with these images.

    Args:
        images: of any size and format; those that are not square turn by 180 degrees alone.
        seed: of the random numbers.

    Example:
        >>> from goen.data import load_set
        >>> some = load_set("digits").take(range(20))
        >>> len(strongly_augmented(some, seed=0)), strongly_augmented(some, seed=0).overlap(some)
        (20, 0)
    """
    pixels = images.read()
    for row, digest in enumerate(images.digests):
        # RandomState's stream is frozen for good; default_rng's is not.
        entropy = np.random.SeedSequence([seed, int.from_bytes(digest, "big")])
        rng = np.random.RandomState(np.random.MT19937(entropy))
        change = _puzzle if rng.randint(2) else _turned_with_a_hole
        pixels[row] = change(pixels[row], rng)
    labels = np.zeros(len(pixels), np.int64)
    changed = ImageSet(f"augmented {images.name}", pixels, labels, ("augmented",))
    return changed.without(images)


def _puzzle(image: Pixels, rng: np.random.RandomState) -> Pixels:
    """The squares of the image ``(C, H, W)`` in another order; what no square covers stays."""
    height, width = (size // _GRID for size in image.shape[1:])
    squares = [
        image[:, row * height : (row + 1) * height, column * width : (column + 1) * width]
        for row in range(_GRID)
        for column in range(_GRID)
    ]
    order = rng.permutation(len(squares)).reshape(_GRID, _GRID)
    image = image.copy()
    rows = [np.concatenate([squares[i] for i in line], axis=2) for line in order]
    image[:, : height * _GRID, : width * _GRID] = np.concatenate(rows, axis=1)
    return image


def _turned_with_a_hole(image: Pixels, rng: np.random.RandomState) -> Pixels:
    """The image, turned, with a grey square of half its shorter side at a random place."""
    turns = rng.randint(1, 4)
    height, width = image.shape[1:]
    image = np.rot90(image, k=turns if height == width else 2, axes=(1, 2)).copy()
    short = min(height, width)
    side = short // 2
    top, left = rng.randint(short - side + 1, size=2)
    top, left = (
        place * (size - side) // (short - side)
        for place, size in zip((top, left), (height, width), strict=True)
    )
    image[:, top : top + side, left : left + side] = (
        _GREY if image.dtype == np.uint8 else _GREY * 257
    )
    return image
