from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from scipy.optimize import brentq
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from goen.errors import FitError
from goen.functional.fusion import fuse


def cues(count: int, shift: tuple[float, ...], seed: int) -> Tensor:
    rows = np.random.default_rng(seed).normal(shift, 1.0, (count, len(shift)))
    return torch.from_numpy(rows)


def reference(parts: list[Tensor]) -> tuple[np.ndarray, float]:
    """Unconstrained weights by scikit-learn: half of the say to ID, the rest to the kinds."""
    shares = [0.5] + [0.5 / (len(parts) - 1)] * (len(parts) - 1)
    sample_weight = np.concatenate(
        [np.full(len(p), 1000 * s / len(p)) for p, s in zip(parts, shares, strict=True)]
    )
    is_ood = np.concatenate([np.full(len(p), i > 0) for i, p in enumerate(parts)])
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000)
    model.fit(np.concatenate(parts), is_ood, sample_weight)
    return model.coef_[0], model.intercept_[0]


def test_where_no_bound_is_met_it_is_sklearns_logistic_regression() -> None:
    parts = [cues(300, (0, 0, 0), 0), cues(50, (1, 0.5, 0.2), 1), cues(200, (0.3, 1, 0.4), 2)]
    weights, bias = fuse(parts[0], parts[1:], pull=0, evenness=0)
    expected, intercept = reference(parts)
    assert (expected > 0).all()
    assert np.allclose(weights, expected, atol=1e-4)
    assert np.isclose(bias, intercept, atol=1e-4)


def test_a_cue_that_points_the_wrong_way_is_left_out() -> None:
    parts = [cues(300, (0, 0), 0), cues(200, (1, -2), 1)]
    assert reference(parts)[0][1] < 0
    weights, bias = fuse(parts[0], parts[1:], pull=0, evenness=0)
    expected, intercept = reference([part[:, :1] for part in parts])
    assert weights[1] == 0
    assert np.isclose(weights[0], expected[0], atol=1e-4)
    assert np.isclose(bias, intercept, atol=1e-4)


def test_one_cue_worked_by_hand() -> None:
    # ID at -1, OOD at 1: no bias by symmetry, and the slope of log(1 + exp(-w)) + 0.005 (w - 1)²
    # is zero where 1 / (1 + exp(w)) = 0.01 (w - 1).
    one = torch.tensor([[1.0]])
    weights, bias = fuse(-one, [one], pull=0.01)
    expected = brentq(lambda w: 1 / (1 + np.exp(w)) - 0.01 * (w - 1), 1, 10)
    assert np.isclose(expected, 3.6167, atol=1e-4)
    assert np.isclose(weights[0], expected, atol=1e-5)
    assert abs(bias) < 1e-5


def test_two_cues_worked_by_hand() -> None:
    # ID at (-1, 0), OOD at (1, 0). At the least loss the slopes of both pulls balance the images':
    # with mean m and half difference d of the weights (m + d, m - d), the second weight gives
    # 0.1 (m - 1) = 0.5 d, and the first 0.1 (m - 1) + 0.5 d = 1 / (1 + exp(m + d)).
    one = torch.tensor([[1.0, 0.0]])
    weights, _ = fuse(-one, [one], pull=0.1, evenness=0.5)
    d = brentq(lambda d: d - 1 / (1 + np.exp(1 + 6 * d)), 0, 1)
    assert np.isclose(d, 0.1383, atol=1e-4)
    assert np.allclose(weights, [1 + 6 * d, 1 + 4 * d], atol=1e-5)


def test_the_more_even_the_less_one_kind_moves_the_weights() -> None:
    id_cues, ood = cues(300, (0, 0, 0), 0), cues(300, (3, 0, 0), 1)
    spread = [float(fuse(id_cues, [ood], evenness=e)[0].std()) for e in (0.0, 0.1, 0.3, 1.0, 100.0)]
    assert spread == sorted(spread, reverse=True)
    assert spread[-1] < 0.01


def test_each_kind_has_the_same_say_however_many_images_it_has() -> None:
    id_cues, many, few = cues(80, (0, 0), 0), cues(60, (1, 0), 1), cues(20, (0, 1), 2)
    once = fuse(id_cues, [many, few])
    again = fuse(id_cues.repeat(3, 1), [many.repeat(5, 1), few])
    assert torch.allclose(once[0], again[0], atol=1e-5)
    assert np.isclose(once[1], again[1], atol=1e-5)


def test_cues_that_separate_perfectly_have_finite_weights() -> None:
    weights, bias = fuse(cues(50, (0, 0), 0), [cues(50, (100, 100), 1)])
    assert torch.isfinite(weights).all()
    assert np.isfinite(bias)
    # Where the images say nothing, the plain sum is kept.
    assert (weights > 0.5).all()


@pytest.mark.parametrize(
    "ood", [torch.zeros(0, 2), torch.tensor([[torch.nan, 0.0]]), torch.tensor([[torch.inf, 0]])]
)
def test_what_cannot_be_weighed_is_said(ood: Tensor) -> None:
    with pytest.raises(FitError, match="cannot be weighed"):
        fuse(cues(5, (0, 0), 0), [ood])


def test_a_search_that_ends_before_the_optimum_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scipy.optimize.minimize

    def short(*args: Any, options: dict[str, float], **given: Any) -> Any:
        return whole(*args, options={**options, "maxiter": 1}, **given)

    monkeypatch.setattr(scipy.optimize, "minimize", short)
    with pytest.raises(FitError, match=r"did not converge .* after 1 steps\). .* Standardise them"):
        fuse(cues(50, (0, 0), 0), [cues(50, (1, -2), 1)])


# In the second a weight ends at its bound, where the slope is not 0.
@pytest.mark.parametrize("shift", [(1.0, 2.0), (2.0, -3.0)])
def test_a_search_that_fails_at_the_optimum_is_no_error(
    monkeypatch: pytest.MonkeyPatch, shift: tuple[float, float]
) -> None:
    images = cues(50, (0, 0), 0), [cues(50, shift, 1)]
    weights, bias = fuse(*images)
    whole = scipy.optimize.minimize

    def failing(*args: Any, **given: Any) -> Any:
        found = whole(*args, **given)
        found.success, found.status, found.message = False, 2, "ABNORMAL: "
        return found

    monkeypatch.setattr(scipy.optimize, "minimize", failing)
    again, same = fuse(*images)
    assert torch.equal(weights, again)
    assert bias == same
