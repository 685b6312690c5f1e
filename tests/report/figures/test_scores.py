"""Bars of the shares flagged, and the ranges beside them."""

import numpy as np
from sklearn.metrics import precision_recall_curve, roc_curve

from goen.report.figures.scores import (
    flagged_bars,
    histograms,
    precision_recall,
    prevalence_of,
    roc,
)


def test_a_band_goes_from_the_least_to_the_most_beside_its_bar() -> None:
    shares = {"test (ID)": 0.04, "far": 0.9, "near": 0.5}
    (ax,) = flagged_bars(shares, 0.05, {"near": (0.25, 0.75)}).axes
    assert [bar.get_width() for bar in ax.patches] == [0.04, 0.9, 0.5]
    *bands, rate = ax.lines
    assert len(bands) == 2  # the band, and the marks at its ends
    for line in bands:
        assert np.array_equal(line.get_xdata(), [0.25, 0.75])
        assert set(np.round(line.get_ydata())) == {2}  # near is the third
    assert list(rate.get_xdata()) == [0.05, 0.05]
    assert "grey: from the least to the most" in ax.get_xlabel()


def test_without_other_trainings_there_is_no_band() -> None:
    (ax,) = flagged_bars({"test (ID)": 0.04, "far": 0.9}, 0.05, {}).axes
    assert len(ax.lines) == 1
    assert "grey" not in ax.get_xlabel()


def test_histograms_of_sets_of_any_size_have_one_area_and_one_axis() -> None:
    rng = np.random.default_rng(2)
    sets = {"test (ID)": rng.normal(size=900), "far": rng.normal(3, 1, size=30)}
    figure = histograms("title", sets, 1.5)
    for ax, name in zip(figure.axes, sets, strict=True):
        x, y = ax.patches[0].get_xy().T  # type: ignore[attr-defined]
        area = abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2
        assert np.isclose(area, 1)
        assert ax.get_title("left") == name
        assert list(ax.lines[0].get_xdata()) == [1.5, 1.5]
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    (ax,) = histograms("title", {"test (ID)": np.ones(5)}, None).axes  # one set, one value
    assert not ax.lines


def scores(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(0, 1, count).round(1), rng.normal(1, 1, count // 2).round(1)  # with ties


def test_roc_matches_sklearn() -> None:
    id_scores, ood_scores = scores(200)
    labels = np.r_[np.zeros(200), np.ones(100)]
    fpr, tpr, _ = roc_curve(labels, np.r_[id_scores, ood_scores], drop_intermediate=False)
    alarms, found = roc(id_scores, ood_scores)
    assert np.allclose(alarms, fpr)
    assert np.allclose(found, tpr)


def test_precision_and_recall_match_sklearn() -> None:
    id_scores, ood_scores = scores(200)
    labels = np.r_[np.zeros(200), np.ones(100)]
    precision, recall, _ = precision_recall_curve(labels, np.r_[id_scores, ood_scores])
    own_recall, own_precision = precision_recall(id_scores, ood_scores)
    assert np.allclose(own_recall, recall[:-1][::-1])
    assert np.allclose(own_precision, precision[:-1][::-1])
    assert own_precision[-1] == prevalence_of(id_scores, ood_scores) == 1 / 3


def test_a_long_curve_is_thinned_but_keeps_its_ends() -> None:
    rng = np.random.default_rng(1)
    alarms, found = roc(rng.normal(size=5000), rng.normal(size=5000))
    assert len(alarms) <= 400
    assert (alarms[0], found[0], alarms[-1], found[-1]) == (0, 0, 1, 1)
