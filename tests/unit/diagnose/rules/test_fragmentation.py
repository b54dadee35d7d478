"""Reserved against allocated."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom
from peakward.records.measurement import MemoryUse

from .made import abstains, case, given, judge, measurement

GIB = 2**30


def using(allocated, reserved):
    use = MemoryUse(peak_allocated_bytes=allocated * GIB, peak_reserved_bytes=reserved * GIB)
    return given(case=case(), measurement=measurement(case(), memory=use))


@pytest.mark.parametrize("allocated", [20, 50])
def test_what_is_reserved_and_not_used(allocated):
    found = judge("MEM004", using(allocated, 70))
    assert isinstance(found, Symptom)
    assert found.held_back_bytes == (70 - allocated) * GIB


@pytest.mark.parametrize("use", [(65, 70), (5, 20)])
def test_silent_where_it_is_used_or_there_is_enough(use):
    assert judge("MEM004", using(*use)) is None


def test_without_a_measurement():
    assert abstains("MEM004", given())
