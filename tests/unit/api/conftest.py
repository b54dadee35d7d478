"""What tests of the front door share."""

import pytest

import peakward as pw
from peakward.lab.measure import probe
from peakward.records.calibration import Calibration, MatmulRate


@pytest.fixture
def calibrated(at_user_modules):
    """A database that knows this machine's ceilings, so that no worker is started for them."""
    known = Calibration(
        environment=probe.environment("cpu"),
        started_at="2026-01-01T00:00:00+00:00",
        wall_s=1.0,
        matmul=(MatmulRate(compute_type="fp32", size=512, flops_per_s=1e12),),
        copy_bytes_per_s=1e11,
        copy_size_bytes=2**30,
    )
    with pw.Store.open(at_user_modules / "peakward.db") as store:
        store.add_calibration(known)
    return at_user_modules
