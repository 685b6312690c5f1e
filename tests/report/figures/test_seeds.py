"""Values by seed."""

from itertools import pairwise

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from goen.report.figures.seeds import seed_points


@pytest.mark.parametrize("values", [(0.983, 0.9927), (0.0301, 0.0433), (1.0, 1.0), (0.3288, 0.88)])
def test_the_numbers_of_the_axis_do_not_touch(values: tuple[float, float]) -> None:
    figure = seed_points("AUROC: noise", "AUROC", {"a row with a long name": values})
    renderer = FigureCanvasAgg(figure).get_renderer()
    [ax] = figure.axes
    low, high = ax.get_xlim()
    texts = [label for label in ax.get_xticklabels() if low <= label.get_position()[0] <= high]
    boxes = [text.get_window_extent(renderer) for text in texts]
    assert len(boxes) >= 2
    for left, right in pairwise(boxes):
        assert right.x0 - left.x1 > 0.3 * left.height
