import pytest
import torch

from goen.functional import _rows
from goen.functional._rows import cached_blocks, floats, sums_are_finite


@pytest.mark.parametrize("slice_elements", [8, 2**15])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_what_is_not_finite_is_found_wherever_it_is(
    slice_elements: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_rows, "_SLICE_ELEMENTS", slice_elements)
    rows = torch.ones(10, 4, dtype=dtype)
    assert sums_are_finite(rows)
    for row in range(10):
        for value in (torch.nan, torch.inf, -torch.inf):
            broken = rows.clone()
            broken[row, row % 4] = value
            assert not sums_are_finite(broken)
    opposite = rows.clone()
    opposite[0, 0], opposite[9, 3] = torch.inf, -torch.inf
    assert not sums_are_finite(opposite)
    assert sums_are_finite(rows[:0])


def test_half_precision_is_summed_in_float32() -> None:
    assert sums_are_finite(torch.full((2, 4), 60_000.0, dtype=torch.float16))


@pytest.mark.parametrize("count", [0, 1, 512, 513, 3000])
@pytest.mark.parametrize("width", [1, 512, 2048])
def test_blocks_cover_every_row_once_and_fit_the_cache(count: int, width: int) -> None:
    blocks = [*cached_blocks(count, width, torch.device("cpu"))]
    rows = torch.arange(count)
    assert torch.equal(torch.cat([rows[block] for block in blocks]), rows)
    sizes = {block.stop - block.start for block in blocks}
    assert sizes == {max(2**18 // width, 512)}


def test_half_precision_becomes_float32_and_wider_numbers_stay() -> None:
    types = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    wide = [floats(torch.ones(1, dtype=dtype)).dtype for dtype in types]
    assert wide == [torch.float32, torch.float32, torch.float32, torch.float64]
