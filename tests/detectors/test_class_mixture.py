import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import normalize
from torch import Tensor

from goen.detectors import ClassMixture, Mahalanobis
from goen.errors import FitError, UsageError
from goen.outputs import Outputs
from tests.detectors.saving import reloaded

DIM = 5


def of(rows: NDArray[np.float64], classes: int = 3) -> Outputs:
    return Outputs(torch.zeros(len(rows), classes), {"z": torch.from_numpy(rows)})


def rows(counts: tuple[int, ...] = (200, 120, 40), seed: int = 0) -> tuple[Outputs, Tensor]:
    """Classes of two lumps each, in different numbers."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(9).normal(size=(len(counts), 2, DIM)) * 4
    labels = np.repeat(np.arange(len(counts)), counts)
    lump = rng.integers(0, 2, len(labels))
    z = centres[labels, lump] + rng.normal(size=(len(labels), DIM))
    return of(z, len(counts)), torch.from_numpy(labels)


def by_hand(means: list[list[float]], variances: list[list[float]]) -> ClassMixture:
    """Unit vectors as they are, two components of equal weight."""
    state = {
        "means": torch.tensor(means, dtype=torch.float64),
        "variances": torch.tensor(variances, dtype=torch.float64),
        "weights": torch.tensor([0.5, 0.5], dtype=torch.float64),
        "whitening.precision_chol": torch.eye(2, dtype=torch.float64),
        "whitening.centre": torch.zeros(2, dtype=torch.float64),
        "whitening.whitened_means": torch.tensor(means, dtype=torch.float64),
        "whitening.classes": torch.arange(2),
        "whitening.condition_number": torch.ones(1, dtype=torch.float64),
    }
    return ClassMixture().load_state(state, {"z": 2}, 2)


def test_by_hand() -> None:
    detector = by_hand([[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [4.0, 0.25]])
    # (3, 0) at unit length is the first mean, and 1, 1 from the second: 1/4 + 1/0.25 = 4.25.
    found = float(detector.score(of(np.array([[3.0, 0.0]]), 2)))
    density = 0.5 * (1 + math.exp(-4.25 / 2)) / (2 * math.pi)
    assert found == pytest.approx(-math.log(density), rel=1e-12)


def test_a_halved_scale_of_the_whitening_quarters_the_density() -> None:
    detector = by_hand([[1.0, 0.0], [1.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]])
    state = {**detector.state(), "whitening.precision_chol": torch.eye(2, dtype=torch.float64) / 2}
    state["means"] = state["means"] / 2
    wider = ClassMixture().load_state(state, {"z": 2}, 2)
    at_the_mean = of(np.array([[1.0, 0.0]]), 2)
    difference = float(wider.score(at_the_mean)) - float(detector.score(at_the_mean))
    assert difference == pytest.approx(math.log(4), rel=1e-12)


def test_its_density_is_that_of_scipy_with_the_shares_of_classes() -> None:
    fit, labels = rows()
    other, _ = rows((30, 30, 30), seed=1)
    detector = ClassMixture(components=2).fit(fit, labels)
    back = np.linalg.inv(detector.whitening_.precision_chol.numpy())
    centre = detector.whitening_.centre.numpy()
    x = normalize(other.features["z"].numpy())
    parts = [
        multivariate_normal(mean @ back + centre, back.T @ np.diag(variance) @ back).logpdf(x)
        + np.log(weight)
        for mean, variance, weight in zip(
            detector.means_.numpy(),
            detector.variances_.numpy(),
            detector.weights_.numpy(),
            strict=True,
        )
    ]
    assert len(parts) == 6  # two lumps in each class
    assert float(detector.weights_[:2].sum()) == pytest.approx(200 / 360)
    assert detector.score(other).tolist() == pytest.approx(-logsumexp(parts, axis=0), rel=1e-9)


def test_each_class_has_scikit_learns_mixture_of_the_least_bic() -> None:
    fit, labels = rows()
    detector = ClassMixture(components=3).fit(fit, labels)
    white = detector.whitening_.whiten(torch.from_numpy(normalize(fit.features["z"].numpy())))
    values = white.numpy()
    found = []
    for number, count in enumerate((200, 120, 40)):
        own = values[labels.numpy() == number]
        mixtures = [
            GaussianMixture(k, covariance_type="diag", reg_covar=5 / count, random_state=0).fit(own)
            for k in (1, 2, 3)
        ]
        best = min(mixtures, key=lambda mixture: mixture.bic(own))
        found.append(best.score_samples(values) + np.log(count / 360))
    scale = float(detector.whitening_.precision_chol.diagonal().log().sum())
    expected = -logsumexp(found, axis=0) - scale
    assert detector.score(fit).tolist() == pytest.approx(expected, rel=1e-9)


def test_classes_of_one_lump_have_one_component() -> None:
    rng = np.random.default_rng(0)
    labels = torch.arange(400) % 2
    # Far out, where a piece of the sphere is flat: in it a lump is a Gaussian.
    z = 100 * np.eye(DIM)[labels.numpy()] + rng.normal(size=(400, DIM))
    assert len(ClassMixture().fit(of(z, 2), labels).means_) == 2
    assert len(ClassMixture(components=1).fit(*rows()).means_) == 3


def test_with_few_rows_a_class_is_close_to_the_shared_covariance() -> None:
    """Classes of one row and of three among a hundred features: ranked as Mahalanobis ranks."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [1, 3, 40])
    centres = rng.normal(size=(3, 100)) * 4
    z = centres[labels] + rng.normal(size=(44, 100))
    detector = ClassMixture().fit(of(z), torch.from_numpy(labels))
    assert len(detector.means_) == 3
    assert detector.variances_[0].tolist() == pytest.approx([1] * 100)
    assert float(detector.variances_[1].min()) >= 1
    near = centres[rng.integers(0, 3, 50)] + rng.normal(size=(50, 100))
    far = rng.normal(size=(50, 100)) * 4
    assert float(detector.score(of(near)).max()) < float(detector.score(of(far)).min())


def test_one_component_of_variance_one_is_half_the_mahalanobis_distance() -> None:
    fit, labels = rows()
    detector = ClassMixture(components=1).fit(fit, labels)
    nearly = {"variances": torch.ones_like(detector.variances_)}
    distance = Mahalanobis(normalise=True).fit(fit, labels)
    distance.whitening_ = detector.whitening_
    other, _ = rows((30, 30, 30), seed=1)
    # The mixture of well separated classes is its nearest one.
    least = torch.stack(
        [reloaded(detector, {**nearly, "weights": torch.eye(3).double()[c]}).score(other)
         for c in range(3)]
    ).amin(dim=0)  # fmt: skip
    offsets = least - distance.score(other) / 2
    assert float(offsets.max() - offsets.min()) < 1e-9


def test_equal_rows_and_dead_features_are_fitted() -> None:
    fit, labels = rows()
    z = fit.features["z"].numpy()
    z = np.hstack([np.repeat(z[::4], 4, axis=0), np.zeros((360, 2))])
    assert torch.isfinite(ClassMixture().fit(of(z), labels).score(of(z))).all()
    same = of(np.ones((40, DIM)))
    with pytest.raises(FitError, match="No feature varies within a class"):
        ClassMixture().fit(same, torch.arange(40) % 3)


@pytest.mark.parametrize("components", [0, 1.5, "4", None])
def test_components_are_a_number(components: object) -> None:
    with pytest.raises(UsageError, match="components must be an integer, at least 1"):
        ClassMixture(components=components)  # type: ignore[arg-type]


def test_a_forged_state_is_refused() -> None:
    detector = ClassMixture(components=2).fit(*rows())
    state = detector.state()
    for name, wrong, message in (
        ("variances", state["variances"] * 0, r"variances should hold finite numbers from 1e-12"),
        ("variances", state["variances"][1:], r"variances should be float64 of shape \(6, 5\)"),
        ("weights", -state["weights"], "weights should hold finite numbers from 0.0 to 1.0"),
        ("means", state["means"][:, 1:], r"means should be float64 of shape \(components, 5\)"),
        ("whitening.more", state["means"], r"unknown names: whitening\.more"),
    ):
        with pytest.raises(ValueError, match=message):
            reloaded(detector, {name: wrong})
