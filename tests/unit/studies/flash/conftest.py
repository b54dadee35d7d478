"""Studies of `flash` whose roof is known."""

import msgspec
import pytest

from peakward.records.calibration import MatmulRate
from peakward.studies import flash

ROOFS = {"fp32": 50e12, "bf16": 400e12}


@pytest.fixture
def read_flash(setting, gathered, calibration):
    """read_flash(scope, device, roofs=, doubts=, **options): setting, readings."""

    def make(scope="corners", device="cuda", roofs=ROOFS, doubts=(), **options):
        here = setting(scope, device)
        readings = gathered(flash, here, **options)
        rates = tuple(
            MatmulRate(compute_type=name, size=8192, flops_per_s=rate)
            for name, rate in roofs.items()
        )
        readings.calibration = msgspec.structs.replace(
            calibration(device), matmul=rates, doubts=doubts
        )
        return here, readings

    return make
