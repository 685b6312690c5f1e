"""Bars of the shares flagged, and the ranges beside them."""

import numpy as np

from goen.report.figures.scores import flagged_bars


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
