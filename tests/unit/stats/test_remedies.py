"""Every reason to doubt step times comes with what to do about it."""

import pytest

from peakward.lab.measure import crowd
from peakward.lab.measure.crowd import Reading
from peakward.lab.measure.nvml import GpuProcess
from peakward.lab.measure.probe import judge_busy
from peakward.lab.measure.stopping import unsteady_reason
from peakward.records.measurement import Interval, Telemetry
from peakward.stats.remedies import QUIET, remedies
from peakward.stats.validity import judge_times

GIB = 2**30


def busy(processes=(), utilisation=(), used=0):
    return judge_busy(processes, utilisation, used, own_pids=(), own_bytes=0)


def times(*steps_s, telemetry=None):
    return judge_times(steps_s, telemetry).reasons


CAPPED = Telemetry(
    sm_clock_mhz=Interval(estimate=1700, low=1500, high=1980),
    throttle_reasons=("sw_power_cap", "hw_thermal_slowdown"),
    n_samples=9,
)
REASONS = (
    crowd.judge(Reading(0, 0, 0), Reading(1.0, 1.0, 0.2), 2),
    busy(processes=[GpuProcess(pid=1, used=GIB)]),
    busy(utilisation=[90]),
    busy(used=9 * GIB),
    unsteady_reason([9.0, 5.0, 3.0], [2.0, 1.0, 0.5]),
    *times(1.0, 1.0),
    *times(*[1.0] * 30, telemetry=CAPPED),
    *times(*[1.0, 1.4] * 20),
    *times(*[1.0] * 39, 50.0),
    *times(*[1 + i / 50 for i in range(30)]),
    *times(*[2 - i / 50 for i in range(30)]),
    "other work took 71% > 5% of the cores while timing",  # as records of before have it
)


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_has_a_remedy(reason):
    assert remedies([reason])


def test_the_reasons_are_of_every_kind():
    for part in (
        "middle half",
        "slow outliers",
        "rose",
        "fell",
        "two modes",
        "power cap",
        "timed steps",
    ):
        assert any(part in reason for reason in REASONS), part


def test_a_remedy_is_said_once():
    assert remedies(
        ["other programs used 71% of the CPU", "other programs used 9%", "unheard of"]
    ) == (QUIET,)
