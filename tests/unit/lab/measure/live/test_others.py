"""Profilers that are not the watch's own: known from when they are attached, before they are."""

import pytest
import torch
from torch.autograd.profiler import profile as Kineto
from torch.profiler import ProfilerActivity, profile

from peakward.lab.measure.live.others import OtherProfilers

CPU = [ProfilerActivity.CPU]


@pytest.fixture
def asked():
    """When room was asked for: whether a profiler recorded already."""
    return []


@pytest.fixture
def others(asked):
    made = OtherProfilers(lambda: asked.append(torch._C._autograd._profiler_enabled()))
    made.start()
    yield made
    made.stop()


def test_one_that_warms_up_is_attached(others, asked):
    theirs = profile(activities=CPU)
    theirs.prepare_trace()
    assert others.any_attached()
    theirs.start_trace()
    theirs.stop_trace()
    assert not others.any_attached()
    assert asked == [False], "once, before it attached itself"


def test_one_of_autograds_own_too(others, asked):
    with Kineto():
        assert others.any_attached()
    assert not others.any_attached()
    assert asked == [False]


def test_one_that_was_there_before_is_found():
    theirs = profile(activities=CPU)
    theirs.prepare_trace()
    others = OtherProfilers(lambda: None)
    others.start()
    try:
        assert others.any_attached()
    finally:
        others.stop()
        theirs.start_trace()
        theirs.stop_trace()


def test_our_own_is_not_another(others, asked):
    with others.ours():
        mine = profile(activities=CPU)
        mine.prepare_trace()
    assert not others.any_attached()
    mine.start_trace()
    mine.stop_trace()
    assert asked == []


def test_afterwards_torch_is_as_before():
    before = (Kineto._prepare_trace, Kineto.__exit__)
    others = OtherProfilers(lambda: None)
    others.start()
    assert Kineto._prepare_trace is not before[0]
    others.stop()
    others.stop()
    assert (Kineto._prepare_trace, Kineto.__exit__) == before


def test_what_another_put_there_meanwhile_stays():
    def theirs(_profiler):
        pass

    real = Kineto._prepare_trace
    others = OtherProfilers(lambda: None)
    others.start()
    try:
        Kineto._prepare_trace = theirs
        others.stop()
        assert Kineto._prepare_trace is theirs
    finally:
        Kineto._prepare_trace = real
