"""What an empty operator costs: which operators, and on which side."""

import pytest

from peakward.lab.measure.calibration import launches
from peakward.lab.measure.calibration.attempt import outcome
from peakward.records.calibration import Absence, LaunchCost


@pytest.fixture
def called(monkeypatch):
    """What each timed call gave."""
    results = []

    def keep(call, device_type):
        results.append(call())
        return 1e-6

    monkeypatch.setattr(launches, "host_s", keep)
    monkeypatch.setattr(launches, "device_s", keep)
    return results


def test_a_cpu_has_the_host_s_costs_alone(called):
    absent, *costs = [outcome(each, "launches") for each in launches.attempts("cpu")]
    assert isinstance(absent, Absence)
    assert "no queue" in absent.reason
    assert costs == [
        LaunchCost(side="host", operation=operation, call_s=1e-6)
        for operation in ("elementwise", "matmul", "autograd")
    ]


def test_autograd_records_and_the_others_do_not(called):
    for each in launches.attempts("cpu"):
        outcome(each, "launches")
    assert [result.grad_fn is not None for result in called] == [False, False, True]
    assert {tuple(result.shape) for result in called} == {(16, 16)}


def test_a_kernel_s_cost_is_the_device_s(called):
    cost = launches._kernel(lambda: None, "cuda")
    assert cost == LaunchCost(side="device", operation="elementwise", call_s=1e-6)
