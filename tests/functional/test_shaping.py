import numpy as np
import pytest
import torch

from goen.functional import shaping
from goen.functional.shaping import (
    activation_percentiles,
    binarise,
    harmless_percentile,
    kept_count,
    largest,
    prune,
    sharpness,
)

ROWS = torch.randn(40, 12, generator=torch.manual_seed(0), dtype=torch.float64).relu()


@pytest.mark.parametrize("count", [1, 5, 12])
def test_every_function_is_that_of_a_slow_loop(count: int) -> None:
    pruned, binary, ratio = (f(ROWS, count).numpy() for f in (prune, binarise, sharpness))
    for number, row in enumerate(ROWS.numpy()):
        largest = np.argsort(-row, kind="stable")[:count]
        kept = np.zeros(12)
        kept[largest] = row[largest]
        assert np.array_equal(pruned[number], kept)
        assert ratio[number, 0] == pytest.approx(row.sum() / kept.sum())
        assert np.sort(binary[number])[-count:] == pytest.approx(row.sum() / count)
        assert binary[number].sum() == pytest.approx(row.sum())


def test_by_hand_with_negative_entries() -> None:
    rows = torch.tensor([[4.0, 2.0, -1.0, 0.0], [-1.0, -2.0, -3.0, -4.0]]).double()
    assert sharpness(rows, 1).flatten().tolist() == [1.5, 1.0]
    assert prune(rows, 1).tolist() == [[4, 0, 0, 0], [-1, 0, 0, 0]]
    assert binarise(rows, 2)[0].tolist() == [2.5, 2.5, 0, 0]


def test_the_ratio_of_a_row_that_is_not_finite_is_nan() -> None:
    rows = torch.tensor([[torch.nan, 1.0], [torch.inf, 1.0], [1.0, 1.0]])
    for count in (1, torch.tensor([1, 1, 1])):
        assert sharpness(rows, count).flatten().isnan().tolist() == [True, True, False]


def test_how_many_are_kept() -> None:
    assert [kept_count(10, q) for q in (0, 64, 90, 99)] == [10, 4, 1, 1]


def test_the_percentile_is_of_all_entries_in_any_precision() -> None:
    for dtype in (torch.float16, torch.float32, torch.float64):
        narrow = ROWS.to(dtype)
        expected = np.percentile(narrow.double().numpy(), 77.5)
        assert activation_percentiles(narrow, 77.5) == pytest.approx([expected], rel=1e-6)


def test_as_much_is_removed_as_leaves_99_of_100_predictions() -> None:
    classes = torch.arange(200) % 2

    def changed(percentile: float) -> torch.Tensor:
        wrong = {80: 2, 85: 3}.get(int(percentile), 0 if percentile < 80 else 100)
        return torch.where(torch.arange(200) < wrong, 1 - classes, classes)

    assert harmless_percentile(changed, classes) == 80
    assert harmless_percentile(lambda q: 1 - classes, classes) == 5
    assert harmless_percentile(lambda q: classes, classes) == 95


def test_a_percentile_of_very_many_entries_is_that_of_rows_drawn_at_random(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shaping, "_MOST_ENTRIES", 40_000)
    rows = torch.arange(100_000.0).view(50_000, 2)  # in order: the first rows would be far off
    low, middle = activation_percentiles(rows, 10, 50)
    assert low != 9_999.9  # not of all
    assert low == pytest.approx(10_000, abs=1_000)
    assert middle == pytest.approx(50_000, abs=1_500)
    assert activation_percentiles(rows, 10, 50) == [low, middle]


def test_the_largest_are_those_of_topk() -> None:
    rows = torch.randn(50, 33, generator=torch.Generator().manual_seed(0))
    for count in (1, 7, 33):
        assert torch.equal(
            largest(rows, count).sort(dim=1).values, rows.topk(count, dim=1).values.flip(1)
        )


def test_entries_that_are_equal_to_the_least_that_is_kept_are_kept() -> None:
    assert prune(torch.tensor([[2.0, 3.0, 2.0, 1.0]]), 2).tolist() == [[2.0, 3.0, 2.0, 0.0]]
