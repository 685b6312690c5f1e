import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import softmax
from scipy.stats import entropy
from sklearn.covariance import ledoit_wolf
from sklearn.preprocessing import normalize

from goen.detectors import Density
from goen.errors import FitError, NotFittedError, UsageError
from goen.outputs import Outputs


def blobs(
    count: int, classes: int = 4, dim: int = 6, seed: int = 0
) -> tuple[Outputs, torch.Tensor]:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    centres = np.random.default_rng(99).normal(size=(classes, dim)) * 3
    z = centres[labels] + rng.normal(size=(count, dim))
    logits = rng.normal(size=(count, classes)) * 2
    outputs = Outputs(torch.from_numpy(logits).float(), {"z": torch.from_numpy(z).float()})
    return outputs, torch.from_numpy(labels)


def slow_cues(fit: Outputs, labels: torch.Tensor, other: Outputs) -> np.ndarray:
    """The paper's equations with scikit-learn and SciPy, one after the other."""
    x, y = normalize(fit.features["z"].double().numpy()), labels.numpy()
    means = np.stack([x[y == c].mean(0) for c in range(4)])
    centred = x - means[y]
    cov = centred.T @ centred / len(x) + 1e-5 * np.eye(x.shape[1])
    unit = normalize(other.features["z"].double().numpy())
    squared = cdist(unit, means, "mahalanobis", VI=np.linalg.inv(cov)) ** 2
    probabilities = softmax(other.logits.double().numpy(), axis=1)
    return np.stack(
        [np.log(squared.min(1) + 1), (unit @ means.T).max(1), entropy(probabilities, axis=1)],
        axis=1,
    )


def test_the_cues_are_the_papers() -> None:
    fit, labels = blobs(200)
    other, _ = blobs(50, seed=1)
    density = Density().fit(fit, labels)
    expected = slow_cues(fit, labels, other)
    assert np.allclose(density.cues(other).numpy(), expected, rtol=1e-7, atol=1e-7)
    assert torch.equal(density.score(other), density.cues(other)[:, 0])


def test_two_classes_worked_by_hand() -> None:
    # Unit vectors (1, 0), (0, 1), each twice: no spread, so the covariance is the ridge alone.
    z = torch.tensor([[2.0, 0.0], [5.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    density = Density(ridge=0.5).fit(
        Outputs(torch.zeros(4, 2), {"z": z}), torch.tensor([0, 0, 1, 1])
    )
    cues = density.cues(Outputs(torch.zeros(1, 2), {"z": torch.tensor([[3.0, 4.0]])}))
    # (0.6, 0.8): nearest mean (0, 1), squared distance (0.36 + 0.04) / 0.5 = 0.8.
    expected = [np.log(1.8), 0.8, np.log(2)]
    assert np.allclose(cues.numpy(), [expected])


def test_far_away_scores_higher() -> None:
    fit, labels = blobs(400)
    rng = np.random.default_rng(5)
    strange = Outputs(torch.zeros(100, 4), {"z": torch.from_numpy(rng.normal(size=(100, 6)))})
    density = Density().fit(fit, labels)
    assert density.score(strange).median() > density.score(fit).quantile(0.9)


def test_updates_in_any_chunks_equal_one_fit() -> None:
    fit, labels = blobs(301)
    whole = Density().fit(fit, labels).cues(fit)
    parts = Density()
    for start in range(0, 301, 37):
        parts.update(fit[start : start + 37], labels[start : start + 37])
    assert torch.allclose(parts.cues(fit), whole, rtol=1e-10)


def test_a_second_fit_forgets_the_first() -> None:
    first, labels = blobs(100)
    second, others = blobs(120, seed=3)
    fresh = Density().fit(second, others)
    again = Density().fit(first, labels)
    again.cues(first)
    again.fit(second, others)
    assert torch.equal(again.cues(first), fresh.cues(first))


def test_state_comes_back_exactly() -> None:
    fit, labels = blobs(100)
    density = Density().fit(fit, labels)
    loaded = Density().load_state(density.state())
    assert torch.equal(loaded.cues(fit), density.cues(fit))


def test_shrinkage_makes_the_covariance_rounder() -> None:
    fit, labels = blobs(12)
    plain, shrunk = Density().fit(fit, labels), Density(shrinkage="oas").fit(fit, labels)
    assert shrunk.whitening_.condition_number < plain.whitening_.condition_number / 2


def test_degenerate_sets_have_an_answer() -> None:
    fit, labels = blobs(100)
    # a class with one image, and a class with none
    few = labels.clone()
    few[few == 3] = 0
    few[0] = 2
    keep = torch.isin(few, torch.tensor([0, 1])) | (torch.arange(100) == 0)
    density = Density().fit(fit[keep], few[keep])
    assert density.whitening_.empty_classes == (3,)
    assert torch.isfinite(density.cues(fit)).all()
    # one class only
    assert torch.isfinite(Density().fit(fit, torch.zeros(100, dtype=torch.int64)).cues(fit)).all()
    # constant features: only the ridge is left, and distances are still distances
    same = Outputs(torch.zeros(10, 4), {"z": torch.ones(10, 6)})
    flat = Density().fit(same, torch.arange(10) % 4)
    assert torch.allclose(flat.score(same), torch.zeros(10, dtype=torch.float64))
    assert (flat.score(fit) > 1).all()
    # a zero vector has no direction, and is far from everything
    nothing = Outputs(torch.zeros(1, 4), {"z": torch.zeros(1, 6)})
    assert torch.isfinite(Density().fit(fit, labels).cues(nothing)).all()


def test_a_thousand_classes() -> None:
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(3000, 16, generator=rng)
    outputs = Outputs(torch.zeros(3000, 1000), {"z": z})
    density = Density().fit(outputs, torch.arange(3000) % 1000)
    assert torch.isfinite(density.cues(outputs)).all()


def test_what_cannot_be_fitted_or_scored_is_said() -> None:
    fit, labels = blobs(20)
    with pytest.raises(NotFittedError, match="not fitted"):
        Density().score(fit)
    with pytest.raises(NotFittedError, match="not fitted"):
        Density().state()
    broken = Outputs(fit.logits, {"z": fit.features["z"].clone()})
    broken.features["z"][3, 2] = torch.nan
    with pytest.raises(FitError, match="1 of 20"):
        Density().fit(broken, labels)
    narrow = Outputs(fit.logits, {"z": fit.features["z"][:, :3]})
    with pytest.raises(UsageError, match="width 6, got 3"):
        Density().fit(fit, labels).score(narrow)


def test_ledoit_wolf_is_sklearns_on_the_centred_unit_vectors() -> None:
    fit, labels = blobs(60)
    x, y = normalize(fit.features["z"].double().numpy()), labels.numpy()
    centred = x - np.stack([x[y == c].mean(0) for c in range(4)])[y]
    cov, _ = ledoit_wolf(centred, assume_centered=True)
    density = Density(shrinkage="ledoit_wolf").fit(fit, labels)
    expected = np.linalg.cond(cov + 1e-5 * np.eye(6))
    assert np.isclose(density.whitening_.condition_number, expected, rtol=1e-8)
    loaded = Density(shrinkage="ledoit_wolf").load_state(density.state())
    assert torch.equal(loaded.cues(fit), density.cues(fit))
    with pytest.raises(UsageError, match="all features at once"):
        density.update(fit, labels)
    with pytest.raises(UsageError, match="Did you mean 'oas'"):
        Density(shrinkage="oaz")
