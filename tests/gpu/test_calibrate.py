"""Calibration on a real GPU: figures that physics allows."""

import pytest

from peakward.lab.measure.calibration.ceilings import ceilings

pytestmark = pytest.mark.gpu


@pytest.mark.full
def test_ceilings():
    found = ceilings("cuda")
    assert {rate.compute_type for rate in found.matmul} >= {"fp32", "fp16"}
    assert found.copy_bytes_per_s > 1e11
