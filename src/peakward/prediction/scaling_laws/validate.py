"""Bounds of the amounts that a scaling law is asked about."""

import math

from peakward.records.errors import PeakwardError


def refuse_unless_positive(value: float, name: str) -> None:
    """Refuses sizes, budgets and rates that are not positive.

    Raises:
        PeakwardError: zero, negative, infinite or not a number.
    """
    if not 0 < value < math.inf:
        raise PeakwardError(f"expected {name} above 0, got {value}: give a finite number above 0")


def refuse_if_negative(value: float, name: str) -> None:
    """Refuses negative prices, and other figures that may be zero.

    Raises:
        PeakwardError: negative, infinite or not a number.
    """
    if not 0 <= value < math.inf:
        raise PeakwardError(
            f"expected {name} of at least 0, got {value}: give a finite number, 0 or above"
        )
