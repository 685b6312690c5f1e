"""Figures of corruptions: where methods are drawn."""

from goen.report.figures.robust import severity_boxes


def places(values: list[float]) -> list[list[float]]:
    """Where the markers of two methods with these values at severities 0 and 5 are."""
    figure = severity_boxes("Accuracy", {name: {0: [0.9], 5: values} for name in ("a", "b")})
    lines = [line for line in figure.axes[0].get_lines() if line.get_label() in ("a", "b")]
    return [list(line.get_xdata()) for line in lines]


def test_methods_are_side_by_side_only_where_there_are_boxes() -> None:
    assert places([0.5]) == [[0, 5], [0, 5]]
    (first, left), (second, right) = places([0.5, 0.7])
    assert first < 0 < second
    assert left < 5 < right
