import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from goen.data.transforms._weather import frost_crops, plasma


def test_frost_is_pale_blue_crystals_without_a_seam() -> None:
    pane = frost_crops(np.array([[0.5, 0.25, 0.75]], dtype=np.float32), 300, 300)[0]
    assert pane.min() >= 0
    assert pane.max() <= 255
    assert (pane[2] >= pane[1]).all()
    assert (pane[1] >= pane[0]).all()
    assert pane[0].std() > 30
    assert np.array_equal(pane[:, 256:, :44], pane[:, :44, 256:])
    steps = np.abs(np.diff(pane[0], axis=0)).mean(axis=1)
    assert steps.max() < 2 * steps.mean()  # the joint at row 192 is no sharper than the rest


def test_the_five_panes_are_those_that_were_judged_by_eye() -> None:
    draw = np.array([[(n + 0.5) / 5, 0.25, 0.75] for n in range(5)], dtype=np.float32)
    panes = frost_crops(draw, 256, 256)
    assert panes.mean(axis=(1, 2, 3)) == pytest.approx(
        [140.758, 141.896, 172.972, 168.570, 132.032], abs=0.005
    )
    assert panes[:, 0].std(axis=(1, 2)) == pytest.approx(
        [51.048, 50.207, 55.074, 54.549, 47.822], abs=0.005
    )
    assert panes[0, :, 10, 20] == pytest.approx([87.745, 98.214, 116.714], abs=0.01)
    assert panes[4, :, 200, 100] == pytest.approx([162.645, 170.492, 183.001], abs=0.01)


def slow_plasma(noise: NDArray[np.floating], decay: float) -> NDArray[np.float64]:
    """Diamond-square, point by point, on a torus."""
    side = len(noise)
    height = np.zeros((side, side))
    step, swing = side, 100.0

    def fill(row: int, col: int, neighbours: list[tuple[int, int]]) -> None:
        known = [height[(row + r) % side, (col + c) % side] for r, c in neighbours]
        jolt = swing * (-swing + 2 * swing * noise[row, col])
        height[row, col] = sum(known) / 4 + jolt

    while step > 1:
        half = step // 2
        for row, col in itertools.product(range(half, side, step), repeat=2):
            fill(row, col, [(-half, -half), (-half, half), (half, -half), (half, half)])
        for row, col in itertools.product(range(0, side, half), repeat=2):
            if (row // half + col // half) % 2 == 1:
                fill(row, col, [(-half, 0), (half, 0), (0, -half), (0, half)])
        step, swing = half, swing / decay
    return np.asarray((height - height.min()) / (height.max() - height.min()))


@pytest.mark.parametrize("decay", [3, 1.75])
def test_plasma_matches_a_slow_loop(decay: float) -> None:
    noise = np.random.default_rng(1).random((2, 16, 16), dtype=np.float32)
    expected = np.stack([slow_plasma(one, decay) for one in noise])
    assert plasma(noise, decay) == pytest.approx(expected, abs=1e-5)
