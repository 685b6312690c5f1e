import numpy as np
import pytest

from goen.report.figures.watch import (
    _thinned,
    e_value_lines,
    flagged_band,
    image_grid,
    p_value_map,
)


@pytest.mark.parametrize("count", [1, 5, 600, 601, 1500])
def test_a_thinned_line_has_the_peak_of_each_part_at_its_last_image(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    each = next(n for n in range(1, count + 1) if n * 600 >= count)
    parts = [values[start : start + each] for start in range(0, count, each)]
    images, thinned = _thinned(values)
    assert thinned.tolist() == [part.max() for part in parts]
    assert images.tolist() == np.cumsum([len(part) for part in parts]).tolist()


@pytest.mark.parametrize("alarm_at", [None, 3])
def test_e_values_are_drawn_within_their_range_and_an_alarm_is_marked(
    alarm_at: int | None,
) -> None:
    lines = {"score": np.array([-50.0, 1.0, 99.0]), "label": np.array([0.0, 0.5, 1.0])}
    (ax,) = e_value_lines(lines, 4.0, None if alarm_at is None else 2, alarm_at).axes
    score, label, line, *alarm = ax.lines
    assert score.get_ydata().tolist() == [-10.0, 1.0, 12.0]
    assert label.get_ydata().tolist() == [0.0, 0.5, 1.0]
    assert ax.get_ylim() == (-10.5, 12.3)
    assert set(line.get_ydata()) == {4.0}
    assert [mark.get_xdata()[0] for mark in alarm] == ([] if alarm_at is None else [3])
    assert len(ax.patches) == len(alarm)


def test_a_map_has_a_column_per_window_and_a_row_per_tenth() -> None:
    shares = np.arange(20.0).reshape(2, 10)
    ax, _ = p_value_map("of the score", shares, np.array([0.0, 5.0, 9.0])).axes
    (mesh,) = ax.collections
    assert np.array_equal(np.asarray(mesh.get_array()), shares.T)
    assert mesh.get_clim() == (0, 3)
    assert ax.get_ylim() == (0, 1)


@pytest.mark.parametrize(("high", "top"), [(0.05, 0.1), (0.5, 0.55), (1.0, 1.0)])
def test_the_share_flagged_has_an_axis_from_zero(high: float, top: float) -> None:
    share, highs = np.array([0.01, 0.02]), np.array([high, 0.03])
    (ax,) = flagged_band(np.array([5.0, 15.0]), share, 0 * share, highs, 7).axes
    band, since = ax.lines
    assert band.get_ydata().tolist() == share.tolist()
    assert since.get_xdata()[0] == 7
    assert ax.get_ylim() == pytest.approx((0, top))


def test_images_stand_in_rows_of_four_and_a_missing_one_is_a_sentence() -> None:
    image = np.zeros((3, 2, 2), np.uint8)
    axes = image_grid([("a", image), ("b", None), *[("c", image)] * 3]).axes
    assert len(axes) == 8
    assert [ax.get_title() for ax in axes] == ["a", "b", "c", "c", "c", "", "", ""]
    assert [len(ax.images) for ax in axes] == [1, 0, 1, 1, 1, 0, 0, 0]
    assert [text.get_text() for text in axes[1].texts] == ["not there\nany more"]
