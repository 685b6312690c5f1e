import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr
from torch import Tensor

from goen.errors import FitError, UsageError
from goen.functional.covariance import (
    oas_shrinkage,
    tied_covariance,
)
from goen.functional.whitening import Whitening, whitener
from tests.functional.drawing import Array, drawn, fed
from tests.functional.tracing import traced


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
    assert whitening.classes.tolist() == [0, 2]
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
    ("means", "cov", "message"),
    [
        (torch.full((2, 2), math.nan), torch.eye(2), "No class has a mean"),
        (torch.tensor([[0.0, math.nan]]), torch.eye(2), "finite"),
        (torch.zeros(1, 2), torch.full((2, 2), math.inf), "finite"),
    ],
)
def test_means_and_covariance_that_cannot_be_used_are_refused(
    means: Tensor, cov: Tensor, message: str
) -> None:
    with pytest.raises(FitError, match=message):
        whitener(means, cov)


def test_rows_that_cannot_be_scored_are_refused() -> None:
    whitening = whitener(torch.zeros(1, 2), torch.eye(2))
    with pytest.raises(UsageError, match="width 2, got 3"):
        whitening.nearest(torch.zeros(1, 3))
    rows = torch.tensor([[0.0, 1.0], [math.nan, 0.0], [math.inf, 0.0]])
    for score in (whitening.nearest, whitening.distances, whitening.whiten):
        with pytest.raises(UsageError, match="2 of 3 feature rows"):
            score(rows)


@pytest.mark.parametrize("num_classes", [1, 5])
def test_the_traced_nearest_agrees_with_the_exact_one(num_classes: int) -> None:
    rows, labels = drawn(3, 200, 6, num_classes)
    whitening, _, _ = fitted(rows, labels, num_classes)
    found = traced(lambda given: tuple(whitening.nearest(given)), rows)
    exact = whitening.nearest(rows)
    for count in (len(rows), 1, 0):
        distance, label = found(rows[:count])
        assert torch.allclose(distance, exact.distance[:count], rtol=1e-10, atol=1e-12)
        assert torch.equal(label, exact.label[:count])
    # Nothing of the traced program is kept.
    assert torch.equal(whitening.nearest(rows).distance, exact.distance)


def test_the_largest_condition_number_is_allowed() -> None:
    cov = torch.tensor([[4.0, 0.0], [0.0, 1.0]])
    assert whitener(torch.zeros(1, 2), cov, max_condition=4.0).condition_number == 4.0
    with pytest.raises(FitError, match=r"condition number 4, and above 3\.9"):
        whitener(torch.zeros(1, 2), cov, max_condition=3.9)
