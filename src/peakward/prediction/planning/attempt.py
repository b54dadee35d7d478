"""A figure, or the reason why there is none."""

from collections.abc import Callable
from typing import TypeVar

from peakward.records.errors import PeakwardError
from peakward.records.plan import Absent

T = TypeVar("T")


class Attempts:
    """The refusals so far, in order."""

    def __init__(self) -> None:
        self._absent: list[Absent] = []

    @property
    def absent(self) -> tuple[Absent, ...]:
        return tuple(self._absent)

    def of(self, figure: str, compute: Callable[[], T]) -> T | None:
        """The figure; where it is refused None, and the refusal is kept."""
        try:
            return compute()
        except PeakwardError as refusal:
            self.without(figure, str(refusal))
            return None

    def without(self, figure: str, reason: str) -> None:
        """Keep the reason why there is no such figure."""
        self._absent.append(Absent(figure=figure, reason=reason))
