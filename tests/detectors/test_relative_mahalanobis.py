import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist
from sklearn.preprocessing import normalize

from goen.detectors import RelativeMahalanobis
from goen.errors import FitError
from goen.outputs import Outputs
from tests.detectors.saving import reloaded


def blobs(
    count: int, classes: int = 4, dim: int = 6, seed: int = 0
) -> tuple[Outputs, torch.Tensor]:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.maximum(np.arange(count) % (classes + 3) - 3, 0))
    centres = np.random.default_rng(99).normal(size=(classes, dim)) * 3
    return of(centres[labels] + rng.normal(size=(count, dim)), classes), torch.from_numpy(labels)


def of(z: ArrayLike, classes: int = 4) -> Outputs:
    rows = torch.from_numpy(np.asarray(z, dtype=np.float64))
    return Outputs(torch.zeros(len(rows), classes), {"z": rows})


@pytest.mark.parametrize("unit_length", [False, True])
def test_it_is_the_papers_difference(unit_length: bool) -> None:
    fit, labels = blobs(300)
    other, _ = blobs(50, seed=1)
    detector = RelativeMahalanobis(normalise=unit_length, ridge=0).fit(fit, labels)
    x, q, y = fit.features["z"].numpy(), other.features["z"].numpy(), labels.numpy()
    if unit_length:
        x, q = normalize(x), normalize(q)
    means = np.stack([x[y == c].mean(0) for c in range(4)])
    own = np.linalg.inv((x - means[y]).T @ (x - means[y]) / len(x))
    everything = np.linalg.inv(np.cov(x.T, bias=True))
    nearest = (cdist(q, means, "mahalanobis", VI=own) ** 2).min(1)
    background = cdist(q, x.mean(0)[None], "mahalanobis", VI=everything)[:, 0] ** 2
    assert np.allclose(detector.score(other).numpy(), nearest - background, rtol=1e-8, atol=1e-9)


def test_by_hand() -> None:
    # Classes at 0 and 10 with variance 1; all rows have mean 5 and variance 26.
    fit = of([[-1], [1], [9], [11]], 2)
    detector = RelativeMahalanobis(ridge=0).fit(fit, torch.tensor([0, 0, 1, 1]))
    score = detector.score(of([[5], [20], [0]], 2))
    assert np.allclose(score.numpy(), [25, 100 - 225 / 26, -25 / 26])


@pytest.mark.parametrize("scale", [1e-4, 1e5])
def test_scaling_all_features_changes_no_score(scale: float) -> None:
    fit, labels = blobs(200)
    other, _ = blobs(60, seed=3)
    score = RelativeMahalanobis(ridge=0.1).fit(fit, labels).score(other)
    detector = RelativeMahalanobis(ridge=0.1).fit(of(fit.features["z"].numpy() * scale), labels)
    assert torch.allclose(detector.score(of(other.features["z"].numpy() * scale)), score, rtol=1e-8)


def test_what_is_unusual_for_all_alike_cancels() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 2
    z = np.stack([10.0 * labels, np.zeros(400)], 1) + rng.normal(size=(400, 2))
    detector = RelativeMahalanobis().fit(of(z, 2), torch.from_numpy(labels))
    # Ten standard deviations aside, but in the direction in which classes do not differ.
    middle, aside, between = detector.score(of([[0, 0], [0, 10], [5, 0]], 2)).tolist()
    assert abs(aside - middle) < 6
    assert between - middle > 20


def test_one_class_has_nothing_relative() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 3))
    labels = torch.zeros(50, dtype=torch.int64)
    detector = RelativeMahalanobis().fit(of(rows, 1), labels)
    assert detector.score(of(rows, 1)).abs().max() < 1e-9


def test_a_row_per_class_is_refused_and_dead_features_are_not() -> None:
    rows = np.random.default_rng(0).normal(size=(4, 3))
    with pytest.raises(FitError, match="more than one row per class"):
        RelativeMahalanobis().fit(of(rows), torch.arange(4))
    fit, labels = blobs(100)
    dead = of(np.hstack([fit.features["z"].numpy(), np.zeros((100, 2))]))
    ours = RelativeMahalanobis().fit(dead, labels).score(dead)
    assert torch.allclose(ours, RelativeMahalanobis().fit(fit, labels).score(fit), atol=1e-3)


def test_the_state_is_all_there_is() -> None:
    detector = RelativeMahalanobis().fit(*blobs(100))
    other, _ = blobs(20, seed=5)
    assert torch.equal(reloaded(detector).score(other), detector.score(other))


def test_a_forged_state_is_refused() -> None:
    detector = RelativeMahalanobis().fit(*blobs(100))
    state = detector.state()
    for name, wrong, message in (
        ("classes.centre", state["classes.centre"][1:], r"classes\.centre should be float64"),
        ("all.whitened_means", state["classes.whitened_means"], r"all\.whitened_means should be"),
        ("all.classes", torch.tensor([1]), r"all\.classes should hold numbers from 0 to 0"),
        ("some.centre", state["all.centre"], r"unknown names: some\.centre"),
        ("all.more", state["all.centre"], r"unknown names: all\.more"),
    ):
        with pytest.raises(ValueError, match=message):
            reloaded(detector, {name: wrong})
