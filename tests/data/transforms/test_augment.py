import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from goen.data.transforms.augment import cut_out, random_crop_flip
from goen.errors import UsageError

BATCH = torch.randint(
    0, 256, (200, 3, 9, 11), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


def slow(images: np.ndarray, seed: int, padding: int, border: str) -> np.ndarray:
    """One image at a time, with NumPy's own padding, from the same three draws."""
    generator = torch.Generator().manual_seed(seed)
    n, _, h, w = images.shape
    top = torch.randint(2 * padding + 1, (n, 1), generator=generator).ravel().tolist()
    left = torch.randint(2 * padding + 1, (n, 1), generator=generator).ravel().tolist()
    flip = (torch.rand(n, generator=generator) < 0.5).tolist()
    out = []
    for image, y, x, mirrored in zip(images, top, left, flip, strict=True):
        rim = ((0, 0), (padding, padding), (padding, padding))
        padded = np.pad(image, rim, mode="constant" if border == "black" else "reflect")
        crop = padded[:, y : y + h, x : x + w]
        out.append(crop[:, :, ::-1] if mirrored else crop)
    return np.stack(out)


@pytest.mark.parametrize("border", ["black", "reflect"])
@given(padding=st.integers(0, 6), seed=st.integers(0, 2**31))
@settings(derandomize=True, deadline=None, max_examples=25)
def test_equals_the_slow_loop(border: str, padding: int, seed: int) -> None:
    fast = random_crop_flip(
        BATCH, torch.Generator().manual_seed(seed), padding=padding, border=border
    )
    assert (fast.numpy() == slow(BATCH.numpy(), seed, padding, border)).all()


def test_shifts_and_flips_are_uniform() -> None:
    # An image whose pixels say where they are, larger than its shifts.
    place = torch.arange(1, 82, dtype=torch.uint8).view(1, 1, 9, 9).repeat(20_000, 3, 1, 1)
    out = random_crop_flip(place, torch.Generator().manual_seed(3), padding=2)
    centres, counts = torch.unique(out[:, 0, 4, 4], return_counts=True)
    assert len(centres) == 25
    assert (counts / 20_000 - 1 / 25).abs().max() < 0.006
    mirrored = (out[:, 0, 4, 5] < out[:, 0, 4, 4]).float().mean()
    assert abs(mirrored - 0.5) < 0.015


def test_the_caller_may_decide_the_flips() -> None:
    flip = torch.arange(200) % 2 == 0
    out = random_crop_flip(BATCH, torch.Generator(), padding=0, flip=flip)
    assert (out[0::2] == BATCH[0::2].flip(3)).all()
    assert (out[1::2] == BATCH[1::2]).all()


def test_the_batch_is_left_alone() -> None:
    before = BATCH.clone()
    random_crop_flip(BATCH, torch.Generator())
    assert (before == BATCH).all()


def test_a_border_larger_than_the_image_is_an_error() -> None:
    with pytest.raises(UsageError, match="larger"):
        random_crop_flip(BATCH, torch.Generator(), padding=9, border="reflect")


def test_cut_out_makes_one_square_grey() -> None:
    images = torch.randint(0, 100, (40, 3, 9, 7), dtype=torch.uint8)
    cut = cut_out(images, torch.Generator().manual_seed(0), 4)
    places = set()
    for before, after in zip(images, cut, strict=True):
        grey = (after == 128).all(0)
        rows, columns = torch.nonzero(grey, as_tuple=True)
        top, left = int(rows.min()), int(columns.min())
        places.add((top, left))
        expected = before.clone()
        expected[:, top : top + 4, left : left + 4] = 128
        assert torch.equal(after, expected)
    assert {top for top, _ in places} == set(range(6))
    assert {left for _, left in places} == set(range(4))


def test_a_square_larger_than_the_image_is_an_error() -> None:
    with pytest.raises(UsageError, match="8 pixels does not fit images of 9×7"):
        cut_out(torch.zeros(1, 3, 9, 7, dtype=torch.uint8), torch.Generator(), 8)


def test_images_of_16_bits_move_like_those_of_8() -> None:
    short = torch.randint(0, 256, (6, 2, 8, 8), dtype=torch.uint8)
    deep = (short.to(torch.int32) * 257).to(torch.uint16)
    for border in ("black", "reflect"):
        seeds = (torch.Generator().manual_seed(3) for _ in range(2))
        moved, same = (
            random_crop_flip(images, seed, padding=2, border=border)  # type: ignore[arg-type]
            for images, seed in zip((short, deep), seeds, strict=True)
        )
        assert same.dtype == torch.uint16
        assert (same.to(torch.int32) == moved.to(torch.int32) * 257).all()
