"""Gaps between kernels that were launched in time."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import abstains, case, foretold, given, judge, kernel, measurement, profile


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


DECODE = case(workload={"batch_size": 4, "pass_": "decode"}, precision="bf16", attention="sdpa")


def reading(times_the_floor, kernel_us, of=DECODE):
    """A step of short kernels without gaps, which takes so many times what reading does."""
    step_s = foretold(of).forecast.floor_s * times_the_floor
    n = max(round(step_s * 1e6 / kernel_us), 1)
    kernels = profile(kernel("small", step_s * 1e3, n=n))
    return foretold(of, profile=kernels, measurement=measurement(of, step_s))


def test_short_kernels_of_a_decode_step_that_draw_little_of_the_bandwidth():
    found = judge("HOST008", reading(10, 5))
    assert isinstance(found, Symptom)
    told = {each.name: each.value for each in found.evidence}
    assert sum(found.parts.values()) == pytest.approx(0.9 * told["step"])
    assert told["least time for reading"] == pytest.approx(told["step"] / 10)
    assert found.levers == ("fused-step", "compile")


@pytest.mark.parametrize(("times", "kernel_us"), [(1.9, 5), (10, 20)])
def test_silent_near_the_bandwidth_and_of_long_kernels(times, kernel_us):
    assert judge("HOST008", reading(times, kernel_us)) is None


def test_the_bandwidth_of_other_passes_is_other_rules():
    assert judge("HOST008", reading(10, 5, case())) is None
