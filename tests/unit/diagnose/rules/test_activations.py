"""Activations that fill the memory."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import abstains, case, foretold, given, judge


@pytest.mark.parametrize("batch_size", [48, 64])
def test_a_large_batch(batch_size):
    given = foretold(case(workload={"batch_size": batch_size, "seq_len": 1024}, attention="sdpa"))
    found = judge("MEM002", given)
    assert isinstance(found, Symptom)
    assert found.held_back_bytes > given.forecast.memory.peak_bytes / 2
    assert "checkpointing" in found.levers


def test_silent_where_memory_is_not_scarce_or_nothing_is_kept():
    assert judge("MEM002", foretold(case(workload={"batch_size": 1}))) is None
    many = {"batch_size": 48, "seq_len": 1024}
    assert judge("MEM002", foretold(case(workload=many, checkpointing="every-block"))) is None
    assert judge("MEM002", foretold(case(workload=many | {"pass_": "forward"}))) is None


def test_without_a_case_or_its_memory():
    assert abstains("MEM002", given())
    assert abstains("MEM002", given(case=case()))
