"""Steps of a live loop that take several times as long as others."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .looped import paused
from .made import PRODUCTS, abstains, given, judge, kernel, of_host, profile

NAME = PRODUCTS.name


@pytest.mark.parametrize("profiled", [None, of_host(), profile(PRODUCTS)])
def test_what_is_beyond_the_median_is_held_back(profiled):
    found = judge("LOOP003", given(profiled, loop=paused(2.0)))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("known", "word"),
    [
        ({"waited_s": 1.5}, "mostly waits for data in the long steps"),
        ({"collected_s": 1.5}, "collector"),
        ({}, "neither"),
    ],
)
def test_it_says_what_they_were(known, word):
    assert word in judge("LOOP003", given(loop=paused(2.0, **known))).cause


def test_silent_without_them():
    assert judge("LOOP003", given(loop=paused(0.2))) is None
    assert judge("LOOP003", given(loop=paused(2.0, n=1))) is None


def test_a_host_that_runs_ahead_of_its_gpu_cannot_tell():
    """Reading the loss every tenth step: nine steps launch, and the tenth waits for all of them."""
    ahead = paused(30.0, n=10)
    assert abstains("LOOP003", given(profile(kernel(NAME, 380)), loop=ahead))
    assert not abstains("LOOP003", given(profile(kernel(NAME, 90)), loop=ahead))
    assert abstains("LOOP003", given(profile()))
