"""Figures, or why there are none."""

import pytest

from peakward.prediction.planning.attempt import Attempts
from peakward.records.errors import PeakwardError
from peakward.records.plan import Absent


def refused():
    raise PeakwardError("expected a GPU, got none")


def test_a_refusal_is_kept_and_the_figure_is_none():
    attempts = Attempts()
    assert attempts.of("size", lambda: 3) == 3
    assert attempts.of("time", refused) is None
    attempts.without("energy", "nobody states it")
    assert attempts.absent == (
        Absent(figure="time", reason="expected a GPU, got none"),
        Absent(figure="energy", reason="nobody states it"),
    )


def test_what_is_no_refusal_is_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        Attempts().of("share", lambda: 1 / 0)
