"""Where labels have been put, so that the next goes where it can be read."""

from peakward.report.charts.axes import Frame
from peakward.report.charts.canvas import LINE

MOST_LINES = 8
"""A label farther than this from its mark would not be read with it."""


class LabelRoom:
    """A frame's room for lines of text, taken one after another."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._taken: list[tuple[float, float, float]] = []

    def take(self, left: float, right: float, y: float) -> float:
        """The baseline for a text from `left` to `right`: `y`, or the nearest a few lines up or down
        that overlaps no other; `y` where all do."""
        lines = sorted(range(-MOST_LINES, MOST_LINES + 1), key=lambda each: (abs(each), -each))
        found = next((at for n in lines if self._is_free(left, right, at := y + n * LINE)), y)
        self.claim(left, right, found)
        return found

    def claim(self, left: float, right: float, y: float) -> None:
        """Take the room of a text whose place is given."""
        self._taken.append((left, right, y))

    def _is_free(self, left: float, right: float, y: float) -> bool:
        if not self._frame.top < y < self._frame.bottom:
            return False
        return not any(
            left < other_right and other_left < right and abs(y - other_y) < LINE
            for other_left, other_right, other_y in self._taken
        )
