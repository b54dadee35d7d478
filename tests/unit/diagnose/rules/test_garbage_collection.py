"""Collections that the program asks for."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom
from peakward.records.profile import HostCall

from .made import MS, abstains, given, host, judge, profile


def collecting(ms, idle_ms=100, n_python=9, n_steps=1):
    call = HostCall(name="gc.collect", n=2, sum_ns=round(ms * MS), longest_ns=round(ms * MS))
    seen = host(n_python=n_python, collections=call if ms else None)
    return profile(idle={"host_bound": idle_ms}, host=seen, n_steps=n_steps)


@pytest.mark.parametrize("ms", [20, 90])
def test_collections_while_the_gpu_waits(ms):
    found = judge("HOST006", given(collecting(ms)))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(ms * 1e-3)


def test_of_several_steps_one_has_its_share_of_them():
    found = judge("HOST006", given(collecting(20, n_steps=4)))
    assert sum(found.parts.values()) == pytest.approx(5e-3)


def test_never_more_than_the_idle_time():
    found = judge("HOST006", given(collecting(500)))
    assert sum(found.parts.values()) == pytest.approx(0.1)


def test_short_ones_and_those_beside_a_busy_gpu_are_fine():
    assert judge("HOST006", given(collecting(1))) is None
    assert judge("HOST006", given(collecting(50, idle_ms=0))) is None


def test_automatic_ones_leave_no_mark():
    assert abstains("HOST006", given(collecting(0)))
    assert abstains("HOST006", given(collecting(50, n_python=0)))
    assert abstains("HOST006", given(profile()))
