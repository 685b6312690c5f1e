import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.covariance import ledoit_wolf
from sklearn.preprocessing import normalize

from goen.detectors import Mahalanobis
from goen.detectors._gaussians import ClassGaussians, load_whitening, whitening_tensors
from goen.errors import FitError, UsageError
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


@pytest.mark.parametrize("unit_length", [True, False])
@pytest.mark.parametrize("relative_ridge", [True, False])
def test_the_distance_is_scipys(unit_length: bool, relative_ridge: bool) -> None:
    fit, labels = blobs(200)
    other, _ = blobs(50, seed=1)
    gaussians = ClassGaussians(
        "z", unit_length=unit_length, ridge=0.01, relative_ridge=relative_ridge
    ).fit(fit, labels)
    x, q = (o.features["z"].double().numpy() for o in (fit, other))
    x, q = (normalize(x), normalize(q)) if unit_length else (x, q)
    means = np.stack([x[labels.numpy() == c].mean(0) for c in range(4)])
    centred = x - means[labels.numpy()]
    cov = centred.T @ centred / len(x)
    cov += 0.01 * (np.trace(cov) / 6 if relative_ridge else 1) * np.eye(6)
    squared = cdist(q, means, "mahalanobis", VI=np.linalg.inv(cov)) ** 2
    assert np.allclose(gaussians.distance(other).numpy(), squared.min(1), rtol=1e-7)


def test_two_classes_worked_by_hand() -> None:
    # Unit vectors (1, 0), (0, 1), each twice: no spread, so the covariance is the ridge alone.
    z = torch.tensor([[2.0, 0.0], [5.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    gaussians = ClassGaussians("z", ridge=0.5).fit(
        Outputs(torch.zeros(4, 2), {"z": z}), torch.tensor([0, 0, 1, 1])
    )
    probe = Outputs(torch.zeros(1, 2), {"z": torch.tensor([[3.0, 4.0]])})
    # (0.6, 0.8): nearest mean (0, 1), squared distance (0.36 + 0.04) / 0.5 = 0.8.
    assert gaussians.distance(probe).item() == pytest.approx(0.8)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_mahalanobis_is_the_same_implementation(normalise: bool, ridge: float) -> None:
    fit, labels = blobs(200)
    other, _ = blobs(60, seed=3)
    gaussians = ClassGaussians("z", unit_length=normalise, ridge=ridge, relative_ridge=True)
    detector = Mahalanobis(normalise=normalise, ridge=ridge).fit(fit, labels)
    assert torch.equal(detector.score(other), gaussians.fit(fit, labels).distance(other))
    assert detector.state()["condition_number"] == gaussians.whitening_.condition_number


def test_updates_in_any_chunks_equal_one_fit() -> None:
    fit, labels = blobs(301)
    whole = ClassGaussians("z").fit(fit, labels).distance(fit)
    parts = ClassGaussians("z")
    for start in range(0, 301, 37):
        parts.update(fit[start : start + 37], labels[start : start + 37])
        parts.distance(fit)  # computed anew after the next update
    assert torch.allclose(parts.distance(fit), whole, rtol=1e-10)


def test_a_second_fit_forgets_the_first() -> None:
    first, labels = blobs(100)
    second, others = blobs(120, seed=3)
    fresh = ClassGaussians("z").fit(second, others)
    again = ClassGaussians("z").fit(first, labels)
    again.distance(first)
    again.fit(second, others)
    assert torch.equal(again.distance(first), fresh.distance(first))


def test_state_comes_back_exactly() -> None:
    fit, labels = blobs(100)
    gaussians = ClassGaussians("z").fit(fit, labels)
    loaded = ClassGaussians("z").load_state(gaussians.state())
    assert torch.equal(loaded.distance(fit), gaussians.distance(fit))


def test_shrinkage_makes_the_covariance_rounder() -> None:
    fit, labels = blobs(12)
    plain = ClassGaussians("z").fit(fit, labels)
    shrunk = ClassGaussians("z", shrinkage="oas").fit(fit, labels)
    assert shrunk.whitening_.condition_number < plain.whitening_.condition_number / 2


def test_ledoit_wolf_is_sklearns_on_the_centred_unit_vectors() -> None:
    fit, labels = blobs(60)
    x, y = normalize(fit.features["z"].double().numpy()), labels.numpy()
    centred = x - np.stack([x[y == c].mean(0) for c in range(4)])[y]
    cov, _ = ledoit_wolf(centred, assume_centered=True)
    gaussians = ClassGaussians("z", shrinkage="ledoit_wolf").fit(fit, labels)
    expected = np.linalg.cond(cov + 1e-5 * np.eye(6))
    assert np.isclose(gaussians.whitening_.condition_number, expected, rtol=1e-8)
    loaded = ClassGaussians("z", shrinkage="ledoit_wolf").load_state(gaussians.state())
    assert torch.equal(loaded.distance(fit), gaussians.distance(fit))
    with pytest.raises(UsageError, match="all features at once"):
        gaussians.update(fit, labels)
    with pytest.raises(UsageError, match="Did you mean 'oas'"):
        ClassGaussians("z", shrinkage="oaz")


def test_a_class_without_images_has_no_gaussian() -> None:
    fit, labels = blobs(100)
    gaussians = ClassGaussians("z").fit(fit, torch.where(labels == 3, 0, labels))
    assert gaussians.whitening_.classes.tolist() == [0, 1, 2]
    assert torch.isfinite(gaussians.distance(fit)).all()
    assert torch.equal(gaussians.means_, gaussians.statistics.means_[:3])


def test_the_means_are_computed_once_after_each_change() -> None:
    fit, labels = blobs(100)
    gaussians = ClassGaussians("z").update(fit[:50], labels[:50])
    first = gaussians.means_
    assert gaussians.means_ is first
    gaussians.update(fit[50:], labels[50:])
    assert torch.equal(gaussians.means_, gaussians.statistics.means_)
    assert not torch.equal(gaussians.means_, first)
    loaded = ClassGaussians("z").fit(fit[:40], labels[:40])
    assert not torch.equal(loaded.means_, gaussians.means_)
    assert torch.equal(loaded.load_state(gaussians.state()).means_, gaussians.means_)


def test_what_cannot_be_fitted_or_measured_is_an_error() -> None:
    fit, labels = blobs(20)
    broken = Outputs(fit.logits, {"z": fit.features["z"].clone()})
    broken.features["z"][3, 2] = torch.nan
    with pytest.raises(FitError, match="1 of 20"):
        ClassGaussians("z").fit(broken, labels)
    narrow = Outputs(fit.logits, {"z": fit.features["z"][:, :3]})
    with pytest.raises(UsageError, match="width 6, got 3"):
        ClassGaussians("z").fit(fit, labels).distance(narrow)
    with pytest.raises(UsageError, match="Unknown feature 'y'"):
        ClassGaussians("y").fit(fit, labels)


def test_a_forged_whitening_is_refused() -> None:
    fit, labels = blobs(100)
    good = whitening_tensors(ClassGaussians("z").fit(fit, labels).whitening_)
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


def test_means_of_unit_vectors_are_at_most_as_long() -> None:
    fit, labels = blobs(100)
    state = ClassGaussians("z", unit_length=False).fit(fit, labels).state()
    ClassGaussians("z", unit_length=False).load_state(state)
    with pytest.raises(ValueError, match=r"mean_high should hold finite numbers from -1\.000001"):
        ClassGaussians("z").load_state(state)
