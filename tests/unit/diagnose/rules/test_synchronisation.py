"""Waits in the loop."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom
from peakward.records.case import StepCase
from peakward.records.profile import Waiting

from .made import MS, abstains, given, judge, measurement, profile

ITEM = Waiting(
    call="cudaStreamSynchronize",
    operator="aten::_local_scalar_dense",
    range=None,
    python="train.py(12): step",
    n=3,
    sum_ns=5 * MS,
    gpu_idle_ns=5 * MS,
    longest_ns=2 * MS,
)


@pytest.mark.parametrize("ms", [10, 100])
def test_the_wait_and_what_follows_it(ms):
    idle = {"synchronisation": ms / 2, "after_synchronisation": ms / 2}
    found = judge("HOST004", given(profile(idle=idle, waits=(ITEM,))))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(ms * 1e-3)
    assert "train.py(12): step" in found.evidence[1].name
    assert found.evidence[1].stored == "profile waits[0].n"


def test_the_lines_of_a_live_step_are_in_the_advice():
    line = "train.py:41: losses.append(loss.item())"
    step = StepCase(name="step", fingerprint="0", device="cuda", waits=(line,))
    found = judge(
        "HOST004",
        given(
            profile(idle={"synchronisation": 50, "after_synchronisation": 0}, waits=(ITEM,)),
            measurement=measurement(step, median_s=1.0),
        ),
    )
    assert found.advice.endswith(f": here `{line}`")


def test_a_wait_while_the_gpu_works_costs_nothing():
    assert judge("HOST004", given(profile(waits=(ITEM,)))) is None


def test_without_idle_causes():
    assert abstains("HOST004", given())
