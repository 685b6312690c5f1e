import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist
from sklearn.covariance import EmpiricalCovariance
from sklearn.preprocessing import normalize

from goen.detectors import Goen, Mahalanobis
from goen.errors import FitError, UsageError
from goen.outputs import Outputs
from tests.detectors.saving import reloaded


def blobs(
    count: int, classes: int = 4, dim: int = 6, seed: int = 0
) -> tuple[Outputs, torch.Tensor]:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    centres = np.random.default_rng(99).normal(size=(classes, dim)) * 3
    z = centres[labels] + rng.normal(size=(count, dim)) @ np.diag(np.linspace(0.1, 2, dim))
    return of(z, classes), torch.from_numpy(labels)


def of(z: ArrayLike, classes: int = 4) -> Outputs:
    rows = torch.from_numpy(np.asarray(z, dtype=np.float64))
    return Outputs(torch.zeros(len(rows), classes), {"z": rows})


@pytest.mark.parametrize("unit_length", [False, True])
def test_it_is_scikit_learns_distance(unit_length: bool) -> None:
    fit, labels = blobs(300)
    other, _ = blobs(50, seed=1)
    x, q, y = fit.features["z"].numpy(), other.features["z"].numpy() * 1.7, labels.numpy()
    detector = Mahalanobis(normalise=unit_length).fit(fit, labels)
    score = detector.score(of(q)).numpy()
    if unit_length:
        x, q = normalize(x), normalize(q)
    means = np.stack([x[y == c].mean(0) for c in range(4)])
    cov = EmpiricalCovariance(assume_centered=True).fit(x - means[y]).covariance_
    cov += 1e-6 * np.trace(cov) / 6 * np.eye(6)
    squared = cdist(q, means, "mahalanobis", VI=np.linalg.inv(cov)) ** 2
    assert np.allclose(score, squared.min(1), rtol=1e-8)


def test_by_hand() -> None:
    # Variances 1 and 4 around (0, 0) and (9, 0), no covariance.
    fit = of([[-1, -2], [1, 2], [8, 2], [10, -2]], 2)
    detector = Mahalanobis(ridge=0).fit(fit, torch.tensor([0, 0, 1, 1]))
    assert detector.score(of([[3, 2], [9, 4], [0, 0]], 2)).tolist() == [10, 4, 0]
    # A ridge of the mean variance, 2.5: variances 3.5 and 6.5.
    detector = Mahalanobis(ridge=1).fit(fit, torch.tensor([0, 0, 1, 1]))
    assert detector.score(of([[3, 2]], 2)).item() == pytest.approx(9 / 3.5 + 4 / 6.5)


def test_normalised_it_is_goens_distance() -> None:
    fit, labels = blobs(200)
    other, _ = blobs(60, seed=3)
    ours = Mahalanobis(normalise=True, ridge=0).fit(fit, labels).score(other)
    assert torch.allclose(ours.log1p(), Goen(ridge=0).fit(fit, labels).score(other))


@pytest.mark.parametrize("scale", [2.0**-40, 1e-3, 1e6])
def test_scaling_all_features_changes_no_score(scale: float) -> None:
    fit, labels = blobs(200)
    other, _ = blobs(60, seed=3)
    z, q = fit.features["z"].numpy(), other.features["z"].numpy()
    score = Mahalanobis(ridge=0.01).fit(fit, labels).score(other)
    scaled = Mahalanobis(ridge=0.01).fit(of(z * scale), labels).score(of(q * scale))
    assert torch.allclose(scaled, score, rtol=1e-9)


def test_features_that_never_vary_do_not_break_the_fit() -> None:
    fit, labels = blobs(200)
    other, _ = blobs(60, seed=3)
    alive = Mahalanobis().fit(fit, labels).score(other)
    dead = np.full((200, 3), 7.0)
    detector = Mahalanobis().fit(of(np.hstack([fit.features["z"].numpy(), dead])), labels)
    score = detector.score(of(np.hstack([other.features["z"].numpy(), dead[:60]])))
    assert torch.allclose(score, alive, rtol=1e-4)
    awake = dead[:60] + 0.1
    assert (detector.score(of(np.hstack([other.features["z"], awake]))) > 1e3).all()


def test_degenerate_training_sets_say_what_is_wrong() -> None:
    rows, labels = np.random.default_rng(0).normal(size=(4, 3)), torch.arange(4)
    with pytest.raises(FitError, match=r"4 rows in 4 classes.*more than one row per class"):
        Mahalanobis().fit(of(rows), labels)
    with pytest.raises(FitError, match="No feature varies within a class"):
        Mahalanobis().fit(of(np.ones((8, 3))), torch.arange(8) % 4)
    with pytest.raises(FitError, match="condition number"):
        Mahalanobis(ridge=0).fit(of(rows), labels // 2)
    for ridge in (-1.0, np.nan, np.inf):
        with pytest.raises(UsageError, match="ridge must be a number, at least 0"):
            Mahalanobis(ridge=ridge)


def test_one_class_and_missing_classes_are_measured() -> None:
    fit, _ = blobs(100, classes=1)
    one = Mahalanobis().fit(of(fit.features["z"].numpy(), 1), torch.zeros(100, dtype=torch.int64))
    many = Mahalanobis().fit(of(fit.features["z"].numpy(), 1000), torch.full((100,), 617))
    same = of(fit.features["z"].numpy(), 1000)
    assert torch.equal(one.score(fit), many.score(same))


def test_another_width_is_refused() -> None:
    detector = Mahalanobis().fit(*blobs(100))
    with pytest.raises(UsageError, match=r"width 6, got 5\. Different backbone"):
        detector.score(blobs(10, dim=5)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_narrow_features_are_measured_in_float64(dtype: torch.dtype) -> None:
    fit, labels = blobs(200)
    narrow = fit.features["z"].to(dtype)
    score = Mahalanobis().fit(Outputs(fit.logits, {"z": narrow}), labels)
    wide = Mahalanobis().fit(Outputs(fit.logits, {"z": narrow.double()}), labels)
    assert torch.equal(score.score(fit), wide.score(fit))


def test_the_state_is_all_there_is() -> None:
    detector = Mahalanobis(normalise=True).fit(*blobs(100))
    other, _ = blobs(20, seed=5)
    assert torch.equal(reloaded(detector).score(other), detector.score(other))
    assert detector.state()["condition_number"].item() > 1
