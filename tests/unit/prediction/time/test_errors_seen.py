"""The intervals; what they hold of stored measurements is `tests/accuracy`'s."""

import pytest

from peakward.models.presets import model
from peakward.prediction.time.errors_seen import (
    DEVICE,
    HOST,
    LEVEL,
    SPEEDUP_FACTORS,
    interval,
    speedup,
    stays_bound_by_device,
)
from peakward.records.case import ModelCase, Workload
from peakward.records.prediction import PhasePrediction, StepTime


def test_an_interval_is_the_prediction_times_its_factors():
    found = interval(2.0, (0.5, 3.0))
    assert (found.low, found.estimate, found.high, found.level) == (1.0, 2.0, 6.0, LEVEL)


@pytest.mark.parametrize("factors", [*DEVICE.values(), *HOST.values()])
def test_the_prediction_lies_in_its_interval(factors):
    low, high = factors
    assert 0 < low < 1 < high


@pytest.mark.parametrize(
    ("surer", "less_sure"),
    [
        (DEVICE["calibrated"], DEVICE["datasheet"]),
        (HOST[True], HOST[False]),
        (DEVICE["calibrated"], HOST[True]),
        (DEVICE["datasheet"], HOST[False]),
    ],
)
def test_what_is_known_less_well_has_the_wider_one(surer, less_sure):
    assert less_sure[0] < surer[0]
    assert less_sure[1] > surer[1]


def phase(device_s, host_s):
    return PhasePrediction(
        phase="forward", device_s=device_s, host_s=host_s, n_launches=9, n_waits=0
    )


@pytest.mark.parametrize("host_is_known", [True, False])
def test_the_device_bounds_what_the_slowest_host_can_still_issue_in_time(host_is_known):
    _, slowest = HOST[host_is_known]
    assert stays_bound_by_device([phase(1.01 * slowest, 0.4), phase(0.0, 0.6)], host_is_known)
    assert not stays_bound_by_device([phase(0.99 * slowest, 0.4), phase(0.0, 0.6)], host_is_known)


def step(device_s, host_s):
    return StepTime(
        case=ModelCase(
            model=model("tiny"), workload=Workload(batch_size=1, seq_len=8), device="cuda"
        ),
        device="H200",
        source="calibrated",
        step_s=interval(device_s, DEVICE["calibrated"]),
        bound="device",
        phases=(phase(device_s, host_s),),
        operators=(),
    )


@pytest.mark.parametrize(("host_s", "by_device"), [(0.4, True), (0.6, False)])
def test_a_gain_is_the_devices_where_a_slower_host_bounds_neither_step(host_s, by_device):
    low, high = SPEEDUP_FACTORS["calibrated", by_device]
    found = speedup(step(2.0, host_s), step(1.0, host_s), 2.0)
    assert (found.low, found.high) == (2.0 * low, 2.0 * high)
