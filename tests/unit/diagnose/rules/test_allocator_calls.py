"""Calls to the driver in steady steps."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom
from peakward.records.profile import HostCall

from .made import MS, abstains, given, host, judge, profile


def calling(n, ms, name="cudaFree", n_steps=3):
    calls = (HostCall(name=name, n=n, sum_ns=round(ms * MS), longest_ns=1),)
    return given(
        profile(idle={"host_bound": 100}, host=host(*calls), n_steps=n_steps), n_steps=n_steps
    )


@pytest.mark.parametrize(("n", "ms"), [(3, 15), (60, 90)])
def test_once_a_step_or_more(n, ms):
    found = judge("MEM003", calling(n, ms))
    assert isinstance(found, Symptom)
    assert found.evidence[0].value == n / 3
    assert sum(found.parts.values()) == pytest.approx(ms * 1e-3 / 3)


@pytest.mark.parametrize(
    "given", [calling(1, 90), calling(60, 0.1), calling(60, 90, name="cudaLaunchKernel")]
)
def test_silent_where_seldom_short_or_another(given):
    assert judge("MEM003", given) is None


def test_without_steps_or_calls():
    assert abstains("MEM003", calling(3, 15, n_steps=None))
    assert abstains("MEM003", given(profile()))
