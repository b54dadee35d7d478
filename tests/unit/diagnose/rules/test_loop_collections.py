"""Collections in a live loop."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .looped import loop
from .made import abstains, given, judge, of_host, profile

COLLECTING = loop(n_collections=100, collected_s=4.0, longest_collection_s=0.05)


@pytest.mark.parametrize("profiled", [None, of_host()])
def test_on_a_cpu_all_of_it_is_held_back(profiled):
    found = judge("LOOP002", given(profiled, loop=COLLECTING))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(0.04)


@pytest.mark.parametrize(("idle_ms", "held_s"), [(20, 0.02), (80, 0.04)])
def test_on_a_gpu_no_more_than_it_was_idle_for(idle_ms, held_s):
    busy = loop(total_s=10 + 0.1 * idle_ms, n_collections=100, collected_s=4.0)
    found = judge("LOOP002", given(profile(idle={"host_bound": idle_ms}), loop=busy))
    assert sum(found.parts.values()) == pytest.approx(held_s)


def test_silent_without_it():
    assert judge("LOOP002", given(loop=loop(n_collections=9, collected_s=0.2))) is None
    assert judge("LOOP002", given(profile(), loop=COLLECTING)) is None, "the GPU had work"


def test_what_it_cannot_know():
    assert abstains("LOOP002", given(profile()))
