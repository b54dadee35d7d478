"""Gaps between kernels that were launched in time."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import abstains, given, judge, kernel, profile


def queued(gap_us, kernel_us, n=10_000):
    """So many kernels and as many gaps."""
    kernels = [kernel("small", kernel_us * n / 1e3, n=n)]
    return given(profile(*kernels, idle={"queued": gap_us * n / 1e3}))


def test_gaps_of_a_microsecond_between_short_kernels():
    found = judge("HOST008", queued(1, 4))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(10e-3)
    assert found.levers == ("compile",)


@pytest.mark.parametrize(("gap_us", "kernel_us"), [(1, 9.9), (30, 100), (0, 4)])
def test_silent_of_long_kernels_and_of_small_gaps(gap_us, kernel_us):
    assert judge("HOST008", queued(gap_us, kernel_us)) is None


def test_the_host_s_gaps_are_another_rule_s():
    slow = profile(kernel("small", 40, n=10_000), idle={"host_bound": 50})
    assert judge("HOST008", given(slow)) is None


def test_without_idle_causes():
    assert abstains("HOST008", given())
