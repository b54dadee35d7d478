"""Dispatch that is slower than the kernels."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import abstains, given, judge, path, profile


@pytest.mark.parametrize("ms", [30, 300])
def test_idle_on_the_way_to_launches(ms):
    found = judge("HOST002", given(profile(idle={"host_bound": ms - 5, "launch_latency": 5})))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(ms * 1e-3)
    assert set(found.levers) == {"compile", "cuda-graphs"}


@pytest.mark.parametrize("idle", [{}, {"host_bound": 5}, {"data_loading": 100}])
def test_silent_without_it(idle):
    assert judge("HOST002", given(profile(idle=idle))) is None


def test_what_is_python_is_not_dispatch():
    slow = profile(idle={"host_bound": 100}, path=path(host=95, operator=5))
    assert judge("HOST002", given(slow)) is None


def test_without_idle_causes():
    assert abstains("HOST002", given())
