"""Keeps labels apart by recording the room that each one takes."""

from peakward.report.charts.axes import Frame
from peakward.report.charts.canvas import LINE

MOST_LINES = 8
"""The longest distance in lines. A label farther from its mark is not read as belonging to it."""


class LabelRoom:
    """The free room in a frame for lines of text."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._taken: list[tuple[float, float, float]] = []

    def take(self, left: float, right: float, y: float) -> float:
        """The baseline for a text from `left` to `right`: `y`, or the nearest free line above or below. It is
        `y` where every near line is taken."""
        lines = sorted(range(-MOST_LINES, MOST_LINES + 1), key=lambda each: (abs(each), -each))
        found = next((at for n in lines if self._is_free(left, right, at := y + n * LINE)), y)
        self.claim(left, right, found)
        return found

    def claim(self, left: float, right: float, y: float) -> None:
        """Take the room of a text with a fixed place."""
        self._taken.append((left, right, y))

    def _is_free(self, left: float, right: float, y: float) -> bool:
        if not self._frame.top < y < self._frame.bottom:
            return False
        return not any(
            left < other_right and other_left < right and abs(y - other_y) < LINE
            for other_left, other_right, other_y in self._taken
        )
