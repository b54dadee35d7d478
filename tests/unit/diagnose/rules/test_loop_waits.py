"""A live loop's waits for data."""

import msgspec
import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .looped import loop, paused
from .made import abstains, given, judge, of_host, profile


@pytest.mark.parametrize("profiled", [None, of_host()])
def test_the_wait_is_what_is_held_back(profiled):
    found = judge("LOOP001", given(profiled, loop=loop(waited_s=4.0)))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(0.04)
    assert found.evidence[0].value == 4.0


def test_waits_in_bursts_count_too():
    bursts = msgspec.structs.replace(paused(5.0, waited_s=5.0), waited_s=5.0)
    found = judge("LOOP001", given(loop=bursts))
    assert sum(found.parts.values()) == pytest.approx(0.05)


@pytest.mark.parametrize("waited_s", [0.0, 0.29])
def test_silent_without_it(waited_s):
    assert judge("LOOP001", given(loop=loop(waited_s=waited_s))) is None


def test_what_it_cannot_know():
    assert abstains("LOOP001", given(of_host()))
    assert abstains("LOOP001", given(loop=loop(waited_s=None)))
    assert abstains("LOOP001", given(profile(), loop=loop(waited_s=4.0)))
    assert abstains("LOOP001", given(loop=loop(n_steps=19, waited_s=4.0)))
