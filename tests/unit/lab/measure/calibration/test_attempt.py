"""What becomes of an attempt."""

import pytest

from peakward.lab.measure.calibration.attempt import Attempt, NotMeasurableError, outcome
from peakward.records.calibration import Absence, LaunchCost

COST = LaunchCost(side="host", operation="matmul", call_s=1e-6)


def raises(error):
    def measure():
        raise error

    return measure


def test_a_figure_is_itself():
    assert outcome(Attempt("matmul", lambda: COST), "launches") == COST


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotMeasurableError("a CPU has no queue"), "a CPU has no queue"),
        (
            RuntimeError('"mm" not implemented for Float8\nmore'),
            'RuntimeError: "mm" not implemented for Float8',
        ),
        (MemoryError("too much"), "MemoryError: too much"),
    ],
)
def test_a_failure_is_an_absence_with_its_reason_in_one_line(error, reason):
    found = outcome(Attempt("matmul", raises(error)), "launches")
    assert found == Absence(subject="launches", figure="matmul", reason=reason)


def test_an_interruption_is_no_absence():
    with pytest.raises(KeyboardInterrupt):
        outcome(Attempt("matmul", raises(KeyboardInterrupt())), "launches")
