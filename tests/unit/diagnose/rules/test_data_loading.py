"""Waiting for the next batch."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import abstains, given, judge, of_host, profile


@pytest.mark.parametrize("ms", [10, 100])
def test_the_wait_is_what_is_held_back(ms):
    found = judge("HOST001", given(profile(idle={"data_loading": ms})))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(ms * 1e-3)
    assert found.evidence[0].value == pytest.approx(ms * 1e-3)


@pytest.mark.parametrize("idle", [{}, {"data_loading": 1}, {"host_bound": 100}])
def test_silent_without_it(idle):
    assert judge("HOST001", given(profile(idle=idle))) is None


def test_a_host_has_no_idle_causes():
    assert abstains("HOST001", given(of_host()))
    assert abstains("HOST001", given())
