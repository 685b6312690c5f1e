"""Class statistics against slow references and numbers worked by hand."""

import math

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.covariance import EmpiricalCovariance
from torch import Tensor

from goen.errors import FitError, UsageError
from goen.functional.covariance import (
    tied_covariance,
)
from goen.functional.gaussian import ClassStatistics
from goen.functional.whitening import whitener
from tests.functional.drawing import Array, drawn, fed

laws = settings(derandomize=True, deadline=None, max_examples=40)


def slow_statistics(
    rows: Array, labels: NDArray[np.int64], num_classes: int
) -> tuple[Array, Array, Array, Array]:
    """Means, within scatter, total mean and total scatter by the definition, one row at a time."""
    dim = rows.shape[1]
    means = np.full((num_classes, dim), np.nan)
    within = np.zeros((dim, dim))
    for c in range(num_classes):
        mine = rows[labels == c]
        if len(mine):
            means[c] = mine.mean(axis=0)
        for row in mine:
            within += np.outer(row - means[c], row - means[c])
    total_mean = rows.mean(axis=0)
    total = np.zeros((dim, dim))
    for row in rows:
        total += np.outer(row - total_mean, row - total_mean)
    return means, within, total_mean, total


def relative_error(value: Tensor, reference: Array) -> float:
    scale = np.abs(reference[np.isfinite(reference)]).max()
    assert np.array_equal(np.isnan(value.numpy()), np.isnan(reference))
    return float(np.nanmax(np.abs(value.numpy() - reference)) / scale)


def assert_matches(
    statistics: ClassStatistics, rows: Tensor, labels: Tensor, tolerance: float = 1e-10
) -> None:
    means, within, total_mean, total = slow_statistics(
        rows.double().numpy(), labels.numpy(), statistics.num_classes
    )
    assert statistics.counts_.tolist() == [
        int((labels == c).sum()) for c in range(statistics.num_classes)
    ]
    assert relative_error(statistics.means_, means) <= tolerance
    assert relative_error(statistics.within_scatter_, within) <= tolerance
    assert relative_error(statistics.total_mean_, total_mean) <= tolerance
    assert relative_error(statistics.total_scatter_, total) <= tolerance


def test_statistics_of_a_case_worked_by_hand() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 6.0], [10.0, 0.0], [12.0, 0.0], [14.0, 3.0]])
    labels = torch.tensor([0, 0, 2, 2, 2])
    s = ClassStatistics(3, 2).update(rows[:3], labels[:3]).update(rows[3:], labels[3:])
    assert s.num_rows == 5
    assert s.counts_.tolist() == [2, 0, 3]
    assert s.means_.isnan().all(dim=1).tolist()[1]
    assert s.means_[0].tolist() == [2.0, 4.0]
    assert s.means_[1].isnan().all()
    assert s.means_[2].tolist() == [12.0, 1.0]
    # class 0: 2·[1,4;4... -> [[2,4],[4,8]]; class 2: [[8,6],[6,6]]
    expected = torch.tensor([[10.0, 10.0], [10.0, 14.0]], dtype=torch.float64)
    torch.testing.assert_close(s.within_scatter_, expected, rtol=1e-15, atol=0)
    torch.testing.assert_close(
        s.total_mean_, torch.tensor([8.0, 2.2], dtype=torch.float64), rtol=1e-15, atol=0
    )
    # between: 2·(-6, 1.8)(-6, 1.8)^T + 3·(4, -1.2)(4, -1.2)^T
    between = torch.tensor([[120.0, -36.0], [-36.0, 10.8]], dtype=torch.float64)
    torch.testing.assert_close(s.between_scatter_, between, rtol=1e-14, atol=0)
    torch.testing.assert_close(s.total_scatter_, expected + between, rtol=1e-14, atol=0)


@laws
@given(
    seed=st.integers(0, 10_000),
    num_rows=st.integers(1, 60),
    dim=st.integers(1, 5),
    num_classes=st.integers(1, 6),
    offset=st.sampled_from([0.0, -3.0, 1e3, 1e6]),
    data=st.data(),
)
def test_statistics_match_the_definition_under_any_chunking(
    seed: int, num_rows: int, dim: int, num_classes: int, offset: float, data: st.DataObject
) -> None:
    rows, labels = drawn(seed, num_rows, dim, num_classes, offset)
    cuts = data.draw(st.lists(st.integers(0, num_rows), max_size=8))
    whole, cut = fed(rows, labels, num_classes), fed(rows, labels, num_classes, cuts)
    one_by_one = fed(rows, labels, num_classes, range(1, num_rows))
    if float(whole.within_scatter_.abs().max()) == 0:  # every class has one row
        assert float(cut.within_scatter_.abs().max()) == 0
        return
    for statistics in (whole, cut, one_by_one):
        assert_matches(statistics, rows, labels)


@laws
@given(seed=st.integers(0, 10_000), offset=st.sampled_from([0.0, 1e6]), data=st.data())
def test_statistics_match_the_definition_under_any_merge_order(
    seed: int, offset: float, data: st.DataObject
) -> None:
    rows, labels = drawn(seed, 50, 4, 5, offset)
    order = torch.tensor(data.draw(st.permutations(range(50))))
    rows, labels = rows[order], labels[order]
    edges = sorted(data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=6)))
    parts = [
        fed(rows[start:stop], labels[start:stop], 5)
        for start, stop in zip([0, *edges], [*edges, 50], strict=True)
    ]
    while len(parts) > 1:  # merge any two into one until one is left
        taken = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        into = data.draw(st.integers(0, len(parts) - 1))
        parts[into].merge(taken)
    assert_matches(parts[0], rows, labels)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
def test_statistics_are_float64_inside_for_every_float_type(
    dtype: torch.dtype, offset: float
) -> None:
    offset = min(offset, torch.finfo(dtype).max / 4)  # float16 ends at 65504
    rows, labels = drawn(0, 700, 6, 3)
    rows = (rows * max(offset / 10, 1) + offset).to(dtype)
    cut = fed(rows, labels, 3, [1, 2, 300, 301, 650])
    assert cut.means_.dtype == cut.within_scatter_.dtype == torch.float64
    assert_matches(cut, rows, labels, tolerance=1e-12)


def test_offset_of_a_million_costs_no_digit_of_the_scatter() -> None:
    # Steps of 2^-20 so that the moved rows are exactly representable.
    rows, labels = drawn(1, 3000, 8, 4)
    rows = (rows * 2**20).round() / 2**20
    plain = fed(rows, labels, 4, range(7, 3000, 7))
    moved = fed(rows + 2.0**20, labels, 4, range(7, 3000, 7))
    torch.testing.assert_close(moved.within_scatter_, plain.within_scatter_, rtol=1e-13, atol=1e-10)
    torch.testing.assert_close(moved.total_scatter_, plain.total_scatter_, rtol=1e-13, atol=1e-9)


def test_blocks_inside_one_update_agree_with_the_definition() -> None:
    rows, labels = drawn(2, 5000, 3, 4)  # more than two internal blocks
    assert_matches(fed(rows, labels, 4), rows, labels, tolerance=1e-12)
    order = torch.argsort(labels)  # whole classes absent from most blocks
    assert_matches(fed(rows[order], labels[order], 4), rows, labels, tolerance=1e-12)


def test_outlying_first_row_does_not_spoil_the_rest() -> None:
    rows, labels = drawn(3, 4000, 3, 1)
    rows[0] = 1e7
    for cuts in ([], [1], [2000]):
        assert_matches(fed(rows, labels, 1, cuts), rows, labels)


def test_thousand_classes_of_width_512() -> None:
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.integers(0, 999, 3000))  # class 999 never occurs
    rows = torch.from_numpy(rng.normal(size=(3000, 512)).astype(np.float32)) + labels[:, None]
    s = fed(rows, labels, 1000, [10, 1500])
    residuals = rows.double().numpy() - s.means_[labels].numpy()
    reference = (
        EmpiricalCovariance(store_precision=False, assume_centered=True).fit(residuals).covariance_
    )
    assert relative_error(tied_covariance(s, ridge=0.0), reference) <= 1e-10
    assert s.counts_[999] == 0
    whitening = whitener(s.means_, tied_covariance(s))
    distance, label = whitening.nearest(rows[:20])
    assert torch.isfinite(distance).all()
    assert (s.counts_[label] > 0).all()


def test_equal_rows_have_a_scatter_of_exactly_zero() -> None:
    row = torch.from_numpy(np.random.default_rng(29).normal(1e3, 1, size=20))
    for cuts in ([], [3, 17]):
        s = fed(row.expand(3000, 20), torch.zeros(3000, dtype=torch.int64), 1, cuts)
        assert float(s.within_scatter_.abs().max()) == 0
        assert torch.equal(s.means_[0], row)


def test_update_and_merge_return_self_and_leave_their_input_alone() -> None:
    rows, labels = drawn(4, 30, 3, 2)
    rows_before, labels_before = rows.clone(), labels.clone()
    a, b = ClassStatistics(2, 3), fed(rows, labels, 2)
    b_before = b.state()
    assert a.update(rows, labels) is a
    assert a.merge(b) is a
    assert torch.equal(rows, rows_before)
    assert torch.equal(labels, labels_before)
    for name, value in b.state().items():
        assert torch.equal(value, b_before[name])


def test_merging_with_itself_counts_every_row_twice() -> None:
    rows, labels = drawn(5, 20, 3, 2)
    s = fed(rows, labels, 2)
    s.merge(s)
    assert_matches(s, torch.cat([rows, rows]), torch.cat([labels, labels]))


def test_merging_nothing_changes_nothing() -> None:
    rows, labels = drawn(6, 20, 3, 2)
    s = fed(rows, labels, 2)
    before = s.state()
    s.merge(ClassStatistics(2, 3)).update(rows[:0], labels[:0])
    for name, value in s.state().items():
        assert torch.equal(value, before[name])


def test_merging_into_nothing_is_a_copy() -> None:
    rows, labels = drawn(30, 200, 3, 2, offset=1e6)
    s = fed(rows, labels, 2, [50, 120])
    merged = ClassStatistics(2, 3).merge(s)
    for name, value in s.state().items():
        assert torch.equal(value, merged.state()[name]), name


def test_what_is_read_cannot_change_what_is_held() -> None:
    rows, labels = drawn(7, 20, 3, 2)
    s = fed(rows, labels, 2)
    for read in (s.counts_, s.means_, s.within_scatter_, *s.state().values()):
        read.zero_()
    assert_matches(s, rows, labels)


def test_rows_that_carry_gradients_are_accepted() -> None:
    rows = torch.tensor([[1.0], [3.0]], requires_grad=True)
    s = ClassStatistics(1, 1).update(rows, torch.tensor([0, 0]))
    assert s.within_scatter_.item() == 2.0
    assert not s.within_scatter_.requires_grad


def test_saved_state_goes_on_as_if_never_saved() -> None:
    rows, labels = drawn(8, 100, 4, 3, offset=1e6)
    first = fed(rows[:50], labels[:50], 3)
    loaded = ClassStatistics.from_state(
        safetensors.torch.load(safetensors.torch.save(first.state()))
    )
    first.update(rows[50:], labels[50:])
    loaded.update(rows[50:], labels[50:])
    for name, value in first.state().items():
        assert torch.equal(value, loaded.state()[name]), name


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (torch.zeros(2, 4), torch.tensor([0, 1]), "width 3, got 4"),
        (torch.zeros(3), torch.tensor([0]), r"\(1, D\)"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.tensor([0, 1]), "floats"),
        (torch.zeros(2, 3), torch.tensor([0, 2]), r"0 \.\. 1 for 2 classes, got 2"),
        (torch.zeros(2, 3), torch.tensor([-1, 1]), r"got -1"),
        (torch.zeros(2, 3), torch.tensor([0]), "Expected 2 labels"),
        (torch.zeros(2, 3), torch.tensor([0.0, 1.0]), "integer"),
        (np.zeros((2, 3)), torch.tensor([0, 1]), "ndarray"),
    ],
)
def test_rows_that_cannot_be_meant_are_refused(rows: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ClassStatistics(2, 3).update(rows, labels)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rows_that_are_not_finite_are_counted_and_nothing_is_added(
    bad: float, dtype: torch.dtype
) -> None:
    rows, labels = drawn(9, 5000, 3, 2)
    s = fed(rows, labels, 2)
    before = s.state()
    broken = rows.to(dtype)
    broken[[4000, 4500], 1] = bad
    with pytest.raises(FitError, match="2 of 5000 feature rows hold NaN or infinity"):
        s.update(broken, labels)
    for name, value in s.state().items():
        assert torch.equal(value, before[name])


def test_finite_rows_whose_sum_overflows_are_accepted() -> None:
    rows = torch.tensor([[60000.0]] * 4000, dtype=torch.float16)
    labels = torch.zeros(4000, dtype=torch.int64)
    assert ClassStatistics(1, 1).update(rows, labels).means_.item() == 60000
    large = torch.tensor([[3e38], [3e38]])
    assert ClassStatistics(1, 1).update(large, labels[:2]).means_.item() == large[0].item()


def test_statistics_of_unequal_size_do_not_merge() -> None:
    with pytest.raises(UsageError, match="2 classes x 4 dimensions into 2 x 3"):
        ClassStatistics(2, 3).merge(ClassStatistics(2, 4))


@pytest.mark.parametrize(("num_classes", "dim"), [(0, 3), (3, 0)])
def test_statistics_need_a_class_and_a_dimension(num_classes: int, dim: int) -> None:
    with pytest.raises(UsageError, match="at least one"):
        ClassStatistics(num_classes, dim)


def test_statistics_begun_in_inference_mode_go_on_outside() -> None:
    rows, labels = torch.arange(12.0).view(6, 2), torch.arange(6) % 2
    with torch.inference_mode():
        statistics = ClassStatistics(2, 2).update(rows[:4].clone(), labels[:4].clone())
        loaded = ClassStatistics.from_state(statistics.state())
    expected = ClassStatistics(2, 2).update(rows, labels)
    for begun in (statistics, loaded):
        begun.update(rows[4:], labels[4:])
        assert torch.equal(begun.means_, expected.means_)
