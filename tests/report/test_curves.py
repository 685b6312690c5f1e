"""Curves and maps against scikit-learn."""

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.metrics import precision_recall_curve, roc_curve

from goen.functional.gaussian import ClassStatistics
from goen.report.figures.curves import precision_recall, prevalence_of, roc
from goen.studies.evaluate import _principal_axes


def scores(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(0, 1, count).round(1), rng.normal(1, 1, count // 2).round(1)  # with ties


def test_roc_matches_sklearn() -> None:
    known, unknown = scores(200)
    labels = np.r_[np.zeros(200), np.ones(100)]
    fpr, tpr, _ = roc_curve(labels, np.r_[known, unknown], drop_intermediate=False)
    alarms, found = roc(known, unknown)
    assert np.allclose(alarms, fpr)
    assert np.allclose(found, tpr)


def test_precision_and_recall_match_sklearn() -> None:
    known, unknown = scores(200)
    labels = np.r_[np.zeros(200), np.ones(100)]
    precision, recall, _ = precision_recall_curve(labels, np.r_[known, unknown])
    own_recall, own_precision = precision_recall(known, unknown)
    assert np.allclose(own_recall, recall[:-1][::-1])
    assert np.allclose(own_precision, precision[:-1][::-1])
    assert own_precision[-1] == prevalence_of(known, unknown) == 1 / 3


def test_a_long_curve_is_thinned_but_keeps_its_ends() -> None:
    rng = np.random.default_rng(1)
    alarms, found = roc(rng.normal(size=5000), rng.normal(size=5000))
    assert len(alarms) <= 400
    assert (alarms[0], found[0], alarms[-1], found[-1]) == (0, 0, 1, 1)


def test_the_maps_axes_are_those_of_a_pca() -> None:
    rows = torch.randn(300, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = rows * torch.tensor([3.0, 2.0, 1.0, 0.5, 0.2, 0.1]) + 4
    statistics = ClassStatistics(3, 6).update(rows, torch.arange(300) % 3)
    centre, axes, share = _principal_axes(statistics)
    pca = PCA(2).fit(rows.numpy())
    points = ((rows - centre) @ axes).numpy()
    assert np.allclose(np.abs(points), np.abs(pca.transform(rows.numpy())))
    assert np.allclose(share, pca.explained_variance_ratio_)
    assert (axes.gather(0, axes.abs().argmax(0)[None]) > 0).all()
