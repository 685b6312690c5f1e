"""The log e-value as a line of text, for a terminal."""

import math
from collections.abc import Sequence

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ROWS = 8
_MARGIN = 9  # for the numbers at the left
_MOST_POINTS = 4096


class Chart:
    """The log e-value over all images so far, in a fixed number of columns.

    Points are kept at most 4,096 at a time: when there are more, each two become their larger one.

    Args:
        alarm_line: drawn across the chart.

    Example:
        >>> chart = Chart(alarm_line=4.0)
        >>> chart.add([0.0, 2.0, 4.0])
        >>> print(chart.drawn(width=12, rows=2))
             4.0 ··█
             0.0  ██
    """

    def __init__(self, alarm_line: float) -> None:
        self.alarm_line = alarm_line
        self._points: list[float] = []
        self._each, self._open = 1, 0  # images of a point, images in the last one

    def add(self, log_e_value: Sequence[float]) -> None:
        """The log e-value after each of the next images."""
        for value in log_e_value:
            if self._open == 0:
                self._points.append(value)
            self._points[-1] = max(self._points[-1], value)
            self._open = (self._open + 1) % self._each
            if len(self._points) == _MOST_POINTS and not self._open:
                pairs = zip(self._points[::2], self._points[1::2], strict=True)
                self._points, self._each = [max(pair) for pair in pairs], self._each * 2

    def drawn(self, width: int, rows: int = _ROWS) -> str:
        """The chart as lines of text; the dotted line is where the alarm is raised."""
        columns = self._columns(max(width - _MARGIN, 1))
        low = min(0.0, math.floor(min(columns, default=0.0)))
        high = self.alarm_line
        heights = [(min(value, high) - low) / (high - low) * rows for value in columns]
        lines = []
        for row in reversed(range(rows)):
            parts = [min(max(int((height - row) * 8 + 0.5), 0), 8) for height in heights]
            empty = "·" if row == rows - 1 else " "
            text = "".join(_BLOCKS[part] if part else empty for part in parts)
            label = {rows - 1: f"{high:8.1f}", 0: f"{low:8.1f}"}.get(row, " " * 8)
            lines.append(f"{label} {text}".rstrip())
        return "\n".join(lines)

    def _columns(self, count: int) -> list[float]:
        """The points in at most so many columns, the largest of each."""
        each = -(-len(self._points) // count) if self._points else 1
        return [
            max(self._points[start : start + each]) for start in range(0, len(self._points), each)
        ]
