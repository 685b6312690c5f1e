import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance, ledoit_wolf, oas

from goen.errors import FitError
from goen.functional.covariance import (
    ledoit_wolf_shrinkage,
    oas_shrinkage,
    tied_covariance,
    total_covariance,
)
from goen.functional.gaussian import ClassStatistics
from goen.functional.whitening import whitener
from tests.functional.drawing import drawn, fed
from tests.functional.test_gaussian import relative_error


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
