"""Gaussian statistics, whitening and cues against slow references and numbers worked by hand."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import entropy as scipy_entropy
from scipy.stats import spearmanr
from sklearn.covariance import EmpiricalCovariance, ledoit_wolf, oas
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from goen.errors import ArtifactError, FitError, UsageError
from goen.functional.covariance import (
    ledoit_wolf_shrinkage,
    oas_shrinkage,
    tied_covariance,
    total_covariance,
)
from goen.functional.cues import entropy, log_distance, max_inner_product, normalise
from goen.functional.gaussian import ClassStatistics
from goen.functional.whitening import Whitening, whitener

Array = NDArray[np.float64]
laws = settings(derandomize=True, deadline=None, max_examples=40)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small products gain nothing from threads, and wait for each other on a busy machine."""
    with threadpool_limits(1):
        yield


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


def drawn(
    seed: int, num_rows: int, dim: int, num_classes: int, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Rows of correlated Gaussians around class means two apart, all moved by `offset`."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, num_rows)
    means = 2 * rng.normal(size=(num_classes, dim))
    mixing = np.eye(dim) + 0.3 * rng.normal(size=(dim, dim))
    rows = rng.normal(size=(num_rows, dim)) @ mixing + means[labels] + offset
    return torch.from_numpy(rows), torch.from_numpy(labels)


def fed(
    rows: Tensor, labels: Tensor, num_classes: int, cuts: Sequence[int] = ()
) -> ClassStatistics:
    statistics = ClassStatistics(num_classes, rows.shape[1])
    edges = [0, *sorted(cuts), len(rows)]
    for start, stop in pairwise(edges):
        statistics.update(rows[start:stop], labels[start:stop])
    return statistics


# -- statistics: values ----------------------------------------------------------------------


def test_statistics_of_a_case_worked_by_hand() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 6.0], [10.0, 0.0], [12.0, 0.0], [14.0, 3.0]])
    labels = torch.tensor([0, 0, 2, 2, 2])
    s = ClassStatistics(3, 2).update(rows[:3], labels[:3]).update(rows[3:], labels[3:])
    assert s.num_rows == 5
    assert s.counts_.tolist() == [2, 0, 3]
    assert s.empty_classes == (1,)
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
    assert 999 in s.empty_classes
    whitening = whitener(s.means_, tied_covariance(s))
    distance, label = whitening.nearest(rows[:20])
    assert torch.isfinite(distance).all()
    assert not set(label.tolist()) & set(s.empty_classes)


def test_equal_rows_have_a_scatter_of_exactly_zero() -> None:
    row = torch.from_numpy(np.random.default_rng(29).normal(1e3, 1, size=20))
    for cuts in ([], [3, 17]):
        s = fed(row.expand(3000, 20), torch.zeros(3000, dtype=torch.int64), 1, cuts)
        assert float(s.within_scatter_.abs().max()) == 0
        assert torch.equal(s.means_[0], row)


# -- statistics: behaviour -------------------------------------------------------------------


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
    ("change", "message"),
    [
        ({"counts": None}, "consist of"),
        ({"extra": torch.zeros(1)}, "consist of"),
        ({"counts": torch.zeros(4, dtype=torch.int64)}, "'counts' as torch.int64"),
        ({"mean_low": torch.zeros(3, 2)}, "'mean_low' as torch.float64"),
        ({"mean_high": torch.zeros(3, dtype=torch.float64)}, "shape"),
        ({"counts": torch.tensor([1, -1, 0])}, "negative"),
    ],
)
def test_damaged_state_is_refused(change: dict[str, Tensor | None], message: str) -> None:
    state = {**ClassStatistics(3, 2).state(), **change}
    with pytest.raises(ArtifactError, match=message):
        ClassStatistics.from_state({k: v for k, v in state.items() if v is not None})


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (torch.zeros(2, 4), torch.tensor([0, 1]), "width 3, got 4"),
        (torch.zeros(3), torch.tensor([0]), r"\(1, D\)"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.tensor([0, 1]), "floats"),
        (torch.zeros(2, 3), torch.tensor([0, 2]), r"0 \.\. 1 for 2 classes, got 0 \.\. 2"),
        (torch.zeros(2, 3), torch.tensor([-1, 1]), r"got -1 \.\. 1"),
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


# -- covariance and shrinkage ----------------------------------------------------------------


def test_covariance_matches_sklearn_plus_ridge() -> None:
    rows, labels = drawn(10, 300, 6, 3)
    s = fed(rows, labels, 3)
    residuals = (
        rows.numpy() - np.stack([rows[labels == c].mean(0).numpy() for c in range(3)])[labels]
    )
    reference = (
        EmpiricalCovariance(store_precision=False, assume_centered=True).fit(residuals).covariance_
    )
    assert relative_error(tied_covariance(s), reference + 1e-5 * np.eye(6)) <= 1e-12
    total = EmpiricalCovariance(store_precision=False).fit(rows.numpy()).covariance_
    assert relative_error(total_covariance(s, ridge=0.5), total + 0.5 * np.eye(6)) <= 1e-12


@pytest.mark.parametrize("num_rows", [12, 60, 2000])
def test_oas_matches_sklearn(num_rows: int) -> None:
    rows, labels = drawn(11, num_rows, 20, 2)
    s = fed(rows, labels, 2, [5])
    residuals = rows.numpy() - s.means_[labels].numpy()
    cov, shrinkage = oas(residuals, assume_centered=True)
    assert oas_shrinkage(s) == pytest.approx(shrinkage, rel=1e-10)
    shrunk = tied_covariance(s, ridge=0.0, shrinkage=oas_shrinkage(s))
    assert relative_error(shrunk, cov) <= 1e-12


@pytest.mark.parametrize("num_rows", [12, 60, 3000])
def test_ledoit_wolf_matches_sklearn_in_any_chunks(num_rows: int) -> None:
    rows, labels = drawn(12, num_rows, 20, 2, offset=1e3)
    s = fed(rows, labels, 2, [5])
    residuals = rows.numpy() - s.means_[labels].numpy()
    cov, shrinkage = ledoit_wolf(residuals, assume_centered=True)
    chunks = [(rows[i : i + 7], labels[i : i + 7]) for i in range(0, num_rows, 7)]
    for again in ([(rows, labels)], chunks, chunks[::-1]):
        assert ledoit_wolf_shrinkage(s, again) == pytest.approx(shrinkage, rel=1e-9)
    shrunk = tied_covariance(s, ridge=0.0, shrinkage=ledoit_wolf_shrinkage(s, chunks))
    assert relative_error(shrunk, cov) <= 1e-9


def test_ledoit_wolf_of_a_case_worked_by_hand() -> None:
    rows = torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    labels = torch.tensor([0, 0, 0])
    s = ClassStatistics(1, 2).update(rows, labels)
    # fourth powers 34; cov diag(8/3, 2/9), squared norm 580/81; anisotropy 242/81
    assert ledoit_wolf_shrinkage(s, [(rows, labels)]) == pytest.approx(169 / 363, rel=1e-12)
    # OAS: (580 + 676) / ((3 + 1) · 242), over 1
    assert oas_shrinkage(s) == 1.0


def test_ledoit_wolf_wants_the_same_rows_again() -> None:
    rows, labels = drawn(13, 40, 3, 2)
    s = fed(rows, labels, 2)
    with pytest.raises(UsageError, match="have seen 40, the chunks held 39"):
        ledoit_wolf_shrinkage(s, [(rows[1:], labels[1:])])
    with pytest.raises(UsageError, match="in other classes"):
        ledoit_wolf_shrinkage(s, [(rows, 1 - labels)])


def test_shrinkage_of_one_dimension_and_of_no_spread() -> None:
    labels = torch.tensor([0, 0])
    line = torch.tensor([[0.0], [1.0]])
    s = ClassStatistics(1, 1).update(line, labels)
    assert oas_shrinkage(s) == ledoit_wolf_shrinkage(s, [(line, labels)]) == 0
    flat = torch.ones(2, 3)
    s = ClassStatistics(1, 3).update(flat, labels)
    assert oas_shrinkage(s) == 1
    assert ledoit_wolf_shrinkage(s, [(flat, labels)]) == 0


def test_nothing_seen_is_a_fit_error_everywhere() -> None:
    s = ClassStatistics(2, 3)
    for fit in (tied_covariance, total_covariance, oas_shrinkage):
        with pytest.raises(FitError, match="No rows were seen"):
            fit(s)
    with pytest.raises(FitError, match="No rows were seen"):
        ledoit_wolf_shrinkage(s, [])
    with pytest.raises(FitError, match="No rows were seen"):
        _ = s.total_mean_
    with pytest.raises(FitError, match="No class has a mean"):
        whitener(s.means_, torch.eye(3))


def test_constant_features_need_a_ridge() -> None:
    s = ClassStatistics(2, 3).update(torch.ones(6, 3), torch.tensor([0, 0, 0, 1, 1, 1]))
    with pytest.raises(FitError, match="ridge above 0"):
        tied_covariance(s, ridge=0.0)
    assert torch.equal(tied_covariance(s), 1e-5 * torch.eye(3, dtype=torch.float64))
    distance, _ = whitener(s.means_, tied_covariance(s)).nearest(torch.tensor([[1.0, 1.0, 2.0]]))
    assert distance.item() == pytest.approx(1e5, rel=1e-12)


def test_features_too_large_to_square_are_a_fit_error() -> None:
    rows = torch.tensor([[1e200], [-1e200]], dtype=torch.float64)
    s = ClassStatistics(1, 1).update(rows, torch.tensor([0, 0]))
    with pytest.raises(FitError, match="too large to square"):
        tied_covariance(s)


@pytest.mark.parametrize("ridge", [-1e-5, math.nan, math.inf])
def test_ridge_that_cannot_be_meant_is_refused(ridge: float) -> None:
    rows, labels = drawn(14, 10, 2, 1)
    with pytest.raises(UsageError, match="ridge"):
        tied_covariance(fed(rows, labels, 1), ridge)


@pytest.mark.parametrize("shrinkage", [-0.1, 1.1, math.nan])
def test_shrinkage_that_cannot_be_meant_is_refused(shrinkage: float) -> None:
    rows, labels = drawn(14, 10, 2, 1)
    with pytest.raises(UsageError, match="shrinkage"):
        tied_covariance(fed(rows, labels, 1), shrinkage=shrinkage)


# -- whitening -------------------------------------------------------------------------------


def fitted(rows: Tensor, labels: Tensor, num_classes: int) -> tuple[Whitening, Array, Tensor]:
    s = fed(rows, labels, num_classes)
    cov = tied_covariance(s)
    return whitener(s.means_, cov), cov.numpy(), s.means_


def test_distances_of_a_case_worked_by_hand() -> None:
    # precision = [[2, -1], [-1, 2]] / 3
    cov = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    means = torch.tensor([[0.0, 0.0], [4.0, 4.0], [1.0, 0.0]])
    whitening = whitener(means, cov)
    assert whitening.condition_number == pytest.approx(3.0, rel=1e-14)
    rows = torch.tensor([[1.0, 1.0], [3.0, 4.0], [1.0, 0.0]])
    expected = torch.tensor(
        [[2 / 3, 6, 2 / 3], [26 / 3, 2 / 3, 8], [2 / 3, 26 / 3, 0]], dtype=torch.float64
    )
    torch.testing.assert_close(whitening.distances(rows), expected, rtol=1e-13, atol=1e-30)
    distance, label = whitening.nearest(rows)
    torch.testing.assert_close(distance, expected.amin(1), rtol=1e-13, atol=1e-30)
    assert label[1:].tolist() == [1, 2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("dim", "num_classes"), [(3, 2), (40, 10), (16, 200)])
def test_distances_match_scipy(dim: int, num_classes: int, dtype: torch.dtype) -> None:
    rows, labels = drawn(15, 3000, dim, num_classes)
    whitening, cov, means = fitted(rows, labels, num_classes)
    new = (3 * drawn(16, 2500, dim, num_classes)[0]).to(dtype)  # more than one internal block
    reference = (
        cdist(new.double().numpy(), means.numpy(), "mahalanobis", VI=np.linalg.inv(cov)) ** 2
    )
    distances = whitening.distances(new)
    assert distances.dtype == torch.float64
    np.testing.assert_allclose(distances.numpy(), reference, rtol=1e-9)
    distance, label = whitening.nearest(new)
    np.testing.assert_allclose(distance.numpy(), reference.min(axis=1), rtol=1e-9)
    assert label.tolist() == reference.argmin(axis=1).tolist()


def test_order_survives_condition_1e10_where_a_float32_inverse_is_at_chance() -> None:
    # Eigenvectors from a Hadamard matrix are exact in binary, so the reference is exact too.
    dim = 64
    basis = np.array([[1.0]])
    while len(basis) < dim:
        basis = np.block([[basis, basis], [basis, -basis]])
    basis /= math.sqrt(dim)  # 1/8
    variances = np.r_[np.ones(4), np.logspace(-7.5, -10, dim - 4)]  # a few directions hold it all
    rng = np.random.default_rng(17)
    coordinates = rng.normal(size=(2000, dim))
    reference = (coordinates**2).sum(axis=1)
    rows = torch.from_numpy((coordinates * np.sqrt(variances)) @ basis.T)
    cov = torch.from_numpy((basis * variances) @ basis.T)
    whitening = whitener(torch.zeros(1, dim), cov)
    assert whitening.condition_number == pytest.approx(1e10, rel=1e-3)
    distance, _ = whitening.nearest(rows)
    assert spearmanr(distance, reference).statistic >= 0.99999
    np.testing.assert_allclose(distance, reference, rtol=1e-5)
    explicit = torch.linalg.inv(cov.float())
    poor = ((rows.float() @ explicit) * rows.float()).sum(dim=1)
    assert abs(spearmanr(poor, reference).statistic) < 0.2


def test_order_survives_condition_1e10_from_the_stream_on() -> None:
    rng = np.random.default_rng(18)
    dim, num_rows = 48, 1500
    turn, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
    rows = (rng.normal(size=(num_rows, dim)) * np.logspace(0, -5, dim)) @ turn.T + 100.0
    labels = torch.zeros(num_rows, dtype=torch.int64)
    # Leverages from the singular vectors of the rows never form a covariance.
    left, singular, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    reference = num_rows * (left**2).sum(axis=1)
    assert 1e9 < (singular[0] / singular[-1]) ** 2 < 1e11
    s = fed(torch.from_numpy(rows), labels, 1, range(100, num_rows, 100))
    distance, _ = whitener(s.means_, tied_covariance(s, ridge=0.0)).nearest(torch.from_numpy(rows))
    assert spearmanr(distance, reference).statistic >= 0.9999
    np.testing.assert_allclose(distance, reference, rtol=1e-4)


@pytest.mark.parametrize("num_classes", [10, 1000])
def test_nearest_does_not_cancel_between_far_classes(num_classes: int) -> None:
    # Classes 1e8 standard deviations apart: squares of 1e16 less squares of 1e16 leave nothing.
    rng = np.random.default_rng(19)
    means = torch.from_numpy(np.rint(1e8 * rng.normal(size=(num_classes, 32))))
    label = torch.from_numpy(rng.integers(0, num_classes, 500))
    shift = torch.from_numpy(rng.normal(size=(500, 32)))
    shift[0] = 0
    rows = means[label] + shift
    whitening = whitener(means, torch.eye(32))
    distance, nearest = whitening.nearest(rows)
    assert nearest.tolist() == label.tolist()
    assert (distance >= 0).all()
    exact = (rows - means[label]).square().sum(dim=1)
    torch.testing.assert_close(distance, exact, rtol=1e-6, atol=1e-6)
    whitened, b = whitening.whiten(rows), whitening.whitened_means
    expanded = whitened.square().sum(1)[:, None] + b.square().sum(1) - 2 * whitened @ b.T
    assert float((expanded.amin(1) - exact).abs().max()) > 0.5  # the form we avoid


def test_nearest_tells_close_classes_apart_far_from_the_centre() -> None:
    # Two classes half a unit apart at 1e8, and one at -1e8: the proposal cannot tell the two.
    rng = np.random.default_rng(31)
    one = torch.from_numpy(np.rint(1e8 * rng.normal(size=64)))
    other = one.clone()
    other[:16] += 0.125
    whitening = whitener(torch.stack([one, other, -one]), torch.eye(64))
    step = torch.linspace(-1, 2, 301, dtype=torch.float64)[:, None]
    rows = one + step * (other - one)
    distance, label = whitening.nearest(rows)
    least, truth = whitening.distances(rows).min(dim=1)
    torch.testing.assert_close(distance, least, rtol=1e-14, atol=0)
    assert label.tolist() == truth.tolist()
    assert {0, 1} == set(label.tolist())


def test_nearest_equals_the_least_of_the_distances() -> None:
    rows, labels = drawn(20, 4000, 24, 12)
    whitening, _, _ = fitted(rows, labels, 12)
    for scale in (1e-3, 1.0, 1e6):
        distance, label = whitening.nearest(rows * scale)
        distances = whitening.distances(rows * scale)
        torch.testing.assert_close(distance, distances.amin(1), rtol=1e-14, atol=0)
        torch.testing.assert_close(
            distances.gather(1, label[:, None])[:, 0], distances.amin(1), rtol=1e-14, atol=0
        )


def test_distance_at_a_class_mean_is_exactly_zero() -> None:
    rows, labels = drawn(21, 500, 30, 5, offset=1e5)
    whitening, _, means = fitted(rows, labels, 5)
    distance, label = whitening.nearest(means)
    assert distance.tolist() == pytest.approx([0.0] * 5, abs=1e-24)
    assert label.tolist() == list(range(5))
    assert (whitening.distances(rows) >= 0).all()


def test_equal_class_means_are_all_measured() -> None:
    # Every class is a candidate for every row: the slow path, in bounded memory.
    whitening = whitener(torch.ones(300, 4), torch.eye(4))
    distance, label = whitening.nearest(torch.zeros(70, 4))
    assert distance.tolist() == pytest.approx([4.0] * 70)
    assert ((label >= 0) & (label < 300)).all()


def test_offset_does_not_change_distances() -> None:
    rows, labels = drawn(22, 1000, 10, 3)
    near, _, _ = fitted(rows, labels, 3)
    far, _, _ = fitted(rows + 1e6, labels, 3)
    torch.testing.assert_close(
        far.nearest(rows + 1e6).distance, near.nearest(rows).distance, rtol=1e-6, atol=0
    )


def test_batch_of_one_equals_batch_of_many() -> None:
    rows, labels = drawn(23, 300, 20, 4)
    whitening, _, _ = fitted(rows, labels, 4)
    many, label = whitening.nearest(rows)
    for i in range(0, 300, 37):
        one, one_label = whitening.nearest(rows[i : i + 1])
        assert one.item() == pytest.approx(many[i].item(), rel=1e-12)
        assert one_label.item() == label[i].item()
    distance, label = whitening.nearest(rows[:0])
    assert distance.shape == label.shape == (0,)
    assert whitening.distances(rows[:0]).shape == (0, 4)


def test_class_without_rows_is_infinitely_far_and_listed() -> None:
    rows, labels = drawn(24, 100, 3, 2)
    whitening, _, _ = fitted(rows, 2 * labels, 4)  # classes 1 and 3 are empty
    assert whitening.empty_classes == (1, 3)
    distances = whitening.distances(rows)
    assert torch.isinf(distances[:, [1, 3]]).all()
    assert torch.isfinite(distances[:, [0, 2]]).all()
    distance, label = whitening.nearest(rows)
    assert set(label.tolist()) == {0, 2}
    torch.testing.assert_close(distance, distances.amin(dim=1), rtol=1e-14, atol=0)


def test_class_with_one_row_and_single_class_and_fewer_rows_than_dimensions() -> None:
    rows, labels = drawn(25, 5, 12, 1)
    labels[0] = 1
    whitening, _, _ = fitted(rows, labels, 2)
    distance, label = whitening.nearest(rows[:1])
    assert distance.item() == 0
    assert label.item() == 1
    single, cov, means = fitted(rows, torch.zeros_like(labels), 1)
    reference = cdist(rows.numpy(), means.numpy(), "mahalanobis", VI=np.linalg.inv(cov)) ** 2
    np.testing.assert_allclose(single.distances(rows), reference, rtol=1e-6)


def test_fewer_rows_than_dimensions_without_ridge_is_a_fit_error_with_advice() -> None:
    rows, labels = drawn(26, 5, 12, 1)
    s = fed(rows, labels, 1)
    with pytest.raises(FitError, match=r"condition number .* Raise the ridge .*oas_shrinkage"):
        whitener(s.means_, tied_covariance(s, ridge=0.0))
    assert whitener(s.means_, tied_covariance(s, ridge=0.0, shrinkage=oas_shrinkage(s))).dim == 12


def test_condition_number_is_judged_and_reported() -> None:
    cov = torch.diag(torch.tensor([1.0, 1e-13], dtype=torch.float64))
    assert whitener(torch.zeros(1, 2), cov).condition_number == pytest.approx(1e13)
    with pytest.raises(FitError, match=r"condition number 1e\+13, and above 1e\+12"):
        whitener(torch.zeros(1, 2), cov, max_condition=1e12)
    for least in (1e-15, 0.0, -1.0):
        cov[1, 1] = least
        with pytest.raises(FitError, match="condition number"):
            whitener(torch.zeros(1, 2), cov)


def test_precision_chol_is_triangular_and_squares_to_the_precision() -> None:
    rows, labels = drawn(27, 200, 6, 2)
    whitening, cov, _ = fitted(rows, labels, 2)
    chol = whitening.precision_chol.numpy()
    assert np.array_equal(chol, np.triu(chol))
    np.testing.assert_allclose(chol @ chol.T @ cov, np.eye(6), atol=1e-12)


@pytest.mark.parametrize(
    ("means", "cov", "error", "message"),
    [
        (torch.zeros(2, 3), torch.eye(2), UsageError, r"got \(2, 3\) and \(2, 2\)"),
        (torch.zeros(3), torch.eye(3), UsageError, "Expected means"),
        (torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [0.5, 1.0]]), UsageError, "symmetric"),
        (torch.full((2, 2), math.nan), torch.eye(2), FitError, "No class has a mean"),
        (torch.tensor([[0.0, math.nan]]), torch.eye(2), FitError, "finite"),
        (torch.zeros(1, 2), torch.full((2, 2), math.inf), FitError, "finite"),
    ],
)
def test_means_and_covariance_that_cannot_be_used_are_refused(
    means: Tensor, cov: Tensor, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        whitener(means, cov)


def test_rows_that_cannot_be_scored_are_refused() -> None:
    whitening = whitener(torch.zeros(1, 2), torch.eye(2))
    with pytest.raises(UsageError, match="width 2, got 3"):
        whitening.nearest(torch.zeros(1, 3))
    rows = torch.tensor([[0.0, 1.0], [math.nan, 0.0], [math.inf, 0.0]])
    for score in (whitening.nearest, whitening.distances, whitening.whiten):
        with pytest.raises(UsageError, match="2 of 3 feature rows"):
            score(rows)


# -- cues ------------------------------------------------------------------------------------


def test_normalise_gives_unit_rows_and_keeps_zero_rows() -> None:
    rows = torch.tensor([[3.0, -4.0], [0.0, 0.0], [1e-30, 0.0], [1e30, 1e30]])
    unit = normalise(rows)
    half = math.sqrt(0.5)
    expected = torch.tensor([[0.6, -0.8], [0, 0], [1, 0], [half, half]], dtype=torch.float64)
    torch.testing.assert_close(unit, expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1.0, 1e200])
def test_normalise_neither_overflows_nor_vanishes(scale: float) -> None:
    rows = torch.tensor([[3.0, 4.0]], dtype=torch.float64) * scale
    torch.testing.assert_close(
        normalise(rows), torch.tensor([[0.6, 0.8]], dtype=torch.float64), rtol=1e-12, atol=0
    )


def test_normalise_leaves_what_is_not_finite_to_be_refused() -> None:
    unit = normalise(torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [1.0, 0.0]]))
    assert unit[:2].isnan().any(dim=1).all()
    assert unit[2].tolist() == [1.0, 0.0]
    with pytest.raises(FitError, match="2 of 3"):
        ClassStatistics(1, 2).update(unit, torch.zeros(3, dtype=torch.int64))


def test_max_inner_product_keeps_the_length_of_the_means() -> None:
    unit = normalise(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    means = torch.tensor([[0.5, 0.0], [math.nan, math.nan], [0.0, -1.0]])
    product = max_inner_product(unit, means)
    expected = torch.tensor([0.5, 0.0, math.sqrt(0.5) / 2], dtype=torch.float64)
    torch.testing.assert_close(product, expected, rtol=1e-14, atol=0)
    with pytest.raises(FitError, match="No class has a mean"):
        max_inner_product(unit, torch.full((1, 2), math.nan))


def test_log_distance_is_log_of_one_more() -> None:
    value = log_distance(torch.tensor([0.0, math.e - 1, 1e-20, math.inf], dtype=torch.float64))
    assert value.tolist() == pytest.approx([0.0, 1.0, 1e-20, math.inf], rel=1e-15)
    with pytest.raises(UsageError, match="negative"):
        log_distance(torch.tensor([-1e-3]))


def test_entropy_matches_scipy_and_the_extremes() -> None:
    logits = torch.from_numpy(5 * np.random.default_rng(28).normal(size=(50, 10)))
    reference = scipy_entropy(torch.softmax(logits, dim=1).numpy(), axis=1)
    np.testing.assert_allclose(entropy(logits), reference, rtol=1e-10)
    extreme = torch.tensor([[7.0] * 4, [0.0, -math.inf, -math.inf, 0.0], [1e4, 0.0, 0.0, -1e4]])
    assert entropy(extreme).tolist() == pytest.approx([math.log(4), math.log(2), 0.0], rel=1e-14)
    assert entropy(torch.tensor([[math.nan, 0.0]])).isnan().all()


def test_entropy_is_float64_for_half_precision_logits() -> None:
    logits = torch.tensor([[10.0, 0.0, -3.0]], dtype=torch.bfloat16)
    p = [math.exp(x) / (math.exp(10) + 1 + math.exp(-3)) for x in (10, 0, -3)]
    expected = -sum(x * math.log(x) for x in p)
    assert entropy(logits).item() == pytest.approx(expected, rel=1e-12)
