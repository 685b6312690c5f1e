from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.covariance import ledoit_wolf
from sklearn.preprocessing import normalize

from goen.detectors import Detector, Goen, Mahalanobis
from goen.detectors._gaussians import class_statistics, load_whitening, whitening_tensors
from goen.errors import UsageError
from goen.functional.gaussian import ClassStatistics
from goen.io.tensors import Tensors
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


def distance(detector: Detector, outputs: Outputs) -> torch.Tensor:
    """Squared, to the nearest class."""
    scores = detector.score(outputs)
    return torch.expm1(scores) if isinstance(detector, Goen) else scores


@pytest.mark.parametrize(
    ("make", "unit_length", "relative_ridge"),
    [
        (Goen, True, False),
        (partial(Mahalanobis, normalise=True), True, True),
        (Mahalanobis, False, True),
    ],
)
def test_the_distance_is_scipys(
    make: Callable[..., Detector], unit_length: bool, relative_ridge: bool
) -> None:
    fit, labels = blobs(200)
    other, _ = blobs(50, seed=1)
    x, q = (o.features["z"].double().numpy() for o in (fit, other))
    x, q = (normalize(x), normalize(q)) if unit_length else (x, q)
    means = np.stack([x[labels.numpy() == c].mean(0) for c in range(4)])
    centred = x - means[labels.numpy()]
    cov = centred.T @ centred / len(x)
    cov += 0.01 * (np.trace(cov) / 6 if relative_ridge else 1) * np.eye(6)
    squared = cdist(q, means, "mahalanobis", VI=np.linalg.inv(cov)) ** 2
    found = distance(make(ridge=0.01).fit(fit, labels), other)
    assert np.allclose(found.numpy(), squared.min(1), rtol=1e-7)


def test_two_classes_worked_by_hand() -> None:
    # Unit vectors (1, 0), (0, 1), each twice: no spread, so the covariance is the ridge alone.
    z = torch.tensor([[2.0, 0.0], [5.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    goen = Goen(ridge=0.5).fit(Outputs(torch.zeros(4, 2), {"z": z}), torch.tensor([0, 0, 1, 1]))
    probe = Outputs(torch.zeros(1, 2), {"z": torch.tensor([[3.0, 4.0]])})
    # (0.6, 0.8): nearest mean (0, 1), squared distance (0.36 + 0.04) / 0.5 = 0.8.
    assert distance(goen, probe).item() == pytest.approx(0.8)


def test_updates_in_any_chunks_equal_one_fit() -> None:
    fit, labels = blobs(301)
    whole = Goen().fit(fit, labels).cues(fit)
    parts = Goen()
    for start in range(0, 301, 37):
        parts.update(fit[start : start + 37], labels[start : start + 37])
        parts.cues(fit)  # computed anew after the next update
    assert torch.allclose(parts.cues(fit), whole, rtol=1e-10)


def test_rows_are_read_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    fit, labels = blobs(301)
    monkeypatch.setattr("goen.functional._rows._BLOCK_ROWS", 64)
    sizes = []

    def read(some: Outputs) -> torch.Tensor:
        sizes.append(len(some))
        return some.features["z"]

    statistics = class_statistics(fit, labels, read)
    assert max(sizes) == 64
    expected = ClassStatistics(4, 6).update(fit.features["z"], labels)
    assert torch.allclose(statistics.within_scatter_, expected.within_scatter_)


def test_shrinkage_makes_the_covariance_rounder() -> None:
    fit, labels = blobs(12)
    plain = Goen().fit(fit, labels)
    shrunk = Goen(shrinkage="oas").fit(fit, labels)
    assert shrunk.whitening_.condition_number < plain.whitening_.condition_number / 2


def test_ledoit_wolf_is_sklearns_on_the_centred_unit_vectors() -> None:
    fit, labels = blobs(60)
    x, y = normalize(fit.features["z"].double().numpy()), labels.numpy()
    centred = x - np.stack([x[y == c].mean(0) for c in range(4)])[y]
    cov, _ = ledoit_wolf(centred, assume_centered=True)
    goen = Goen(shrinkage="ledoit_wolf").fit(fit, labels)
    expected = np.linalg.cond(cov + 1e-5 * np.eye(6))
    assert np.isclose(goen.whitening_.condition_number, expected, rtol=1e-8)
    with pytest.raises(UsageError, match="fitted on all training images at once"):
        goen.update(fit, labels)


def test_a_forged_whitening_is_refused() -> None:
    fit, labels = blobs(100)
    good = whitening_tensors(Goen().fit(fit, labels).whitening_)
    again = whitening_tensors(load_whitening(Tensors(good), 6, 4))
    assert good.keys() == again.keys()
    assert all(torch.equal(value, good[name]) for name, value in again.items())
    for name, value, message in (
        ("centre", good["centre"][:-1], r"centre should be float64 of shape \(6,\)"),
        ("precision_chol", good["precision_chol"][1:], "precision_chol should be float64 of"),
        ("precision_chol", good["precision_chol"] * torch.nan, "precision_chol should hold finite"),
        ("whitened_means", good["whitened_means"][1:], "whitened_means should be float64"),
        ("classes", good["classes"] + 1, "classes should hold numbers from 0 to 3, got 4"),
        ("classes", good["classes"] * 0, "classes should name each class once"),
        ("num_classes", torch.tensor([4]), "unknown names: num_classes"),
        ("condition_number", torch.zeros(1).double(), "condition_number should hold .* from 1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            load_whitening(Tensors({**good, name: value}), 6, 4)
