"""A clock that the device lowered."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom
from peakward.records.measurement import Interval, Telemetry, Validity

from .made import abstains, case, given, judge, measurement, profile


def clocked(mean, high, verdict="throttled"):
    clock = Interval(estimate=mean, low=mean, high=high, level=1)
    made = measurement(
        case(),
        validity=Validity(verdict=verdict, reasons=("the clock fell",)),
        telemetry=Telemetry(sm_clock_mhz=clock),
    )
    return given(profile(), case=case(), measurement=made, n_steps=1)


@pytest.mark.parametrize("mean", [1000, 1800])
def test_what_the_clock_took(mean):
    found = judge("DEV001", clocked(mean, 2000))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(0.1 * (1 - mean / 2000))


def test_silent_where_the_times_are_stable():
    assert judge("DEV001", clocked(1000, 2000, verdict="stable")) is None


def test_without_a_verdict():
    assert abstains("DEV001", given(profile()))
