import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from goen.functional.image_properties import image_properties, property_names

BRIGHTNESS, CONTRAST, SHARPNESS, ENTROPY, COLOUR = range(5)


def random_images(
    count: int = 3, channels: int = 3, height: int = 11, width: int = 9
) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (count, channels, height, width), dtype=np.uint8)


def slowly(image: NDArray[np.uint8]) -> list[float]:
    """The properties of one image, pixel by pixel."""
    channels, height, width = image.shape
    weights = (0.299, 0.587, 0.114) if channels == 3 else (1 / channels,) * channels
    grey = sum(w * image[c].astype(float) / 255 for c, w in enumerate(weights))
    across = [abs(grey[y, x] - grey[y, x + 1]) for y in range(height) for x in range(width - 1)]
    down = [abs(grey[y, x] - grey[y + 1, x]) for y in range(height - 1) for x in range(width)]
    contrast = float(np.std(grey))
    counts: dict[int, int] = {}
    for value in grey.ravel():
        level = min(int(value * 64), 63)
        counts[level] = counts.get(level, 0) + 1
    shares = [n / grey.size for n in counts.values()]
    found = [
        float(np.mean(grey)),
        contrast,
        (np.mean(across) + np.mean(down)) / 2 / contrast,
        -sum(s * np.log2(s) for s in shares),
    ]
    if channels == 3:
        found.append(float(np.mean(image.max(axis=0).astype(float) - image.min(axis=0)) / 255))
    return found


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_properties_match_a_loop_over_pixels(channels: int) -> None:
    images = random_images(channels=channels)
    found = image_properties(torch.from_numpy(images))
    assert found.shape == (3, len(property_names(channels)))
    assert found.numpy() == pytest.approx(np.array([slowly(one) for one in images]), rel=1e-4)


def test_a_chequered_image_by_hand() -> None:
    # Grey values 0.2 and 0.6, every neighbour is the other one.
    board = 0.2 + 0.4 * (np.indices((4, 4)).sum(axis=0) % 2)
    colour = np.stack([board, board, board])
    colour[0] += 0.1  # red: 0.0299 brighter
    found = image_properties(torch.from_numpy(colour[None]))[0]
    assert found.tolist() == pytest.approx([0.4299, 0.2, 0.4 / 0.2, 1.0, 0.1], abs=1e-5)


def test_each_depth_is_the_same_image() -> None:
    small = torch.from_numpy(random_images())
    deep = torch.from_numpy(random_images().astype(np.uint16) * 257)
    expected = image_properties(small.double() / 255)
    assert torch.allclose(image_properties(small), expected, atol=1e-6)
    assert torch.allclose(image_properties(deep), expected, atol=1e-6)


def test_an_image_of_one_value_has_no_sharpness_and_no_entropy() -> None:
    found = image_properties(torch.full((1, 3, 5, 5), 51, dtype=torch.uint8))[0]
    assert found.tolist() == pytest.approx([0.2, 0, 0, 0, 0], abs=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (33, 200), (200, 33)])
def test_every_size_has_properties(shape: tuple[int, int]) -> None:
    images = torch.from_numpy(random_images(2, 3, *shape))
    found = image_properties(images)
    assert found.isfinite().all()
    assert image_properties(images[:0]).shape == (0, 5)


def test_of_large_images_some_rows_and_columns_are_read_in_full() -> None:
    # Stripes of one pixel: whoever skipped neighbours would see none, or an image of one value.
    for axis in (0, 1):
        stripes = (np.indices((128, 128))[axis] % 2 * 255).astype(np.uint8)
        found = image_properties(torch.from_numpy(stripes[None, None]))[0]
        # Half of the pixels read lie in lines along the stripes, all of which are dark.
        assert found.tolist() == pytest.approx([0.25, 3**0.5 / 4, 0.5 / (3**0.5 / 4), 0.811278])


def test_each_change_moves_its_own_property() -> None:
    rng = np.random.default_rng(1)
    smooth = rng.normal(size=(3, 40, 40)).cumsum(axis=1).cumsum(axis=2)
    smooth = (smooth - smooth.min()) / np.ptp(smooth) * 150 + 50
    image = Image.fromarray(smooth.astype(np.uint8).transpose(1, 2, 0))

    def of(picture: Image.Image) -> torch.Tensor:
        pixels = np.asarray(picture).transpose(2, 0, 1)[None]
        return image_properties(torch.from_numpy(pixels.copy()))[0]

    before = of(image)
    darker = of(image.point(lambda value: value * 0.7))
    assert darker[BRIGHTNESS] < 0.75 * before[BRIGHTNESS]
    assert float(darker[SHARPNESS]) == pytest.approx(float(before[SHARPNESS]), rel=0.05)
    assert of(image.filter(ImageFilter.GaussianBlur(2)))[SHARPNESS] < 0.8 * before[SHARPNESS]
    assert of(image.convert("L").convert("RGB"))[COLOUR] == 0
    assert of(image.point(lambda value: value // 64 * 64))[ENTROPY] < before[ENTROPY] - 0.5
