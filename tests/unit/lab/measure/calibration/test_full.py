"""The full calibration: the ceilings, then every subject."""

import msgspec
import pytest

from peakward.lab.measure import probe
from peakward.lab.measure.calibration.full import DOING, calibrate_in_full
from peakward.records.calibration import SUBJECTS, Absence, Calibration, LaunchCost, Rates
from peakward.records.codec import from_json, to_json

COST = LaunchCost(side="host", operation="matmul", call_s=1e-6)


class Asked:
    """Workers that answer at once; one subject fails."""

    def __init__(self, failing=None, interrupted=None):
        self.requests, self.failing, self.interrupted = [], failing, interrupted

    def calibrate(self, device_type):
        self.requests.append("ceilings")
        return Calibration(
            environment=probe.environment(device_type),
            started_at="2026-01-01T00:00:00+00:00",
            wall_s=0.0,
            matmul=(),
            copy_bytes_per_s=1e10,
            copy_size_bytes=2**20,
            doubts=("the ceilings' own",),
        )

    def rates(self, subject, device_type):
        self.requests.append(subject)
        if subject == self.interrupted:
            raise KeyboardInterrupt
        if subject == self.failing:
            return Rates(absent=(Absence(subject=subject, reason="crashed"),))
        return Rates(launches=(COST,), doubts=(f"{subject}: crowded",))


def test_it_is_the_ceilings_with_all_rates():
    workers, heard = Asked(), []
    found = calibrate_in_full(workers, "cpu", on_subject=heard.append)
    assert workers.requests == ["ceilings", *SUBJECTS]
    assert heard == ["ceilings", *(DOING[subject] for subject in SUBJECTS)]
    assert found.copy_bytes_per_s == 1e10
    assert found.doubts == ("the ceilings' own",)
    assert found.rates.launches == (COST,) * len(SUBJECTS)
    assert len(found.rates.doubts) == len(SUBJECTS)
    assert found.wall_s > 0
    assert from_json(to_json(found), Calibration) == found


def test_a_subject_that_fails_costs_no_other():
    rates = calibrate_in_full(Asked(failing="attention"), "cpu").rates
    assert rates.absent == (Absence(subject="attention", reason="crashed"),)
    assert len(rates.launches) == len(SUBJECTS) - 1


def test_ctrl_c_ends_it():
    workers = Asked(interrupted="traffic")
    with pytest.raises(KeyboardInterrupt):
        calibrate_in_full(workers, "cpu")
    assert workers.requests == ["ceilings", "products", "traffic"]


def test_the_quick_calibration_is_the_full_one_s_ceilings():
    quick = Asked().calibrate("cpu")
    full = calibrate_in_full(Asked(), "cpu")
    assert quick.rates is None
    assert msgspec.structs.replace(full, rates=None, wall_s=0.0) == quick
