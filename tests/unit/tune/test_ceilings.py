"""Where an investigation takes its ceilings from."""

import msgspec
import pytest

from peakward.records.calibration import Calibration, LaunchCost, Rates
from peakward.records.measurement import Environment
from peakward.tune.forecasts import calibrated, launch_costs

from .world import BASE

QUICK = Calibration(
    environment=Environment(
        device_type="cuda",
        device_name="a GPU",
        device_memory_bytes=2**36,
        n_cores=2,
        python="3.11",
        system="Linux",
        peakward="0.1",
    ),
    started_at="2026-01-01T00:00:00+00:00",
    wall_s=2.0,
    matmul=(),
    copy_bytes_per_s=1e12,
    copy_size_bytes=2**30,
)
FULL = Calibration(
    **{name: getattr(QUICK, name) for name in QUICK.__struct_fields__} | {"rates": Rates()}
)


COSTS = Rates(launches=(LaunchCost(side="host", operation="autograd", call_s=8e-6),))


class Lab:
    """A sweep, its workers and its store: it knows one calibration and takes the quick one alone."""

    def __init__(self, known):
        self.known, self.asked, self.workers = known, [], self
        self.environment = QUICK.environment

    def calibrate(self, device_type):
        self.asked.append(device_type)
        return QUICK

    def rates(self, subject, device_type):
        self.asked.append((subject, device_type))
        return COSTS

    def calibration(self, key):
        return self.known if key == QUICK.environment.key else None

    def add_calibration(self, calibration):
        self.known = calibration


def test_without_one_the_ceilings_alone_are_measured_and_stored():
    lab = Lab(None)
    assert calibrated(lab, lab, BASE) == QUICK
    assert lab.asked == ["cuda"]
    assert lab.known == QUICK


@pytest.mark.parametrize("known", [QUICK, FULL])
def test_a_stored_one_serves_quick_or_full(known):
    lab = Lab(known)
    assert calibrated(lab, lab, BASE) is known
    assert lab.asked == []


def test_a_call_of_the_host_is_timed_for_steps_that_are_predicted():
    lab = Lab(FULL)
    assert launch_costs(lab, BASE) == COSTS
    assert lab.asked == [("launches", "cuda")]
    assert launch_costs(lab, msgspec.structs.replace(BASE, device="cpu")) is None
    assert lab.asked == [("launches", "cuda")]
