"""Ranges open and close as they should, whatever happens inside; with CUDA, NVTX's along with them."""

import pytest
import torch

from peakward.lab.levers.ranges import opened, opened_phases


@pytest.fixture
def nvtx(monkeypatch):
    """The calls that NVTX gets in a process that uses CUDA."""
    calls = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", calls.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: calls.append("pop"))
    return calls


def phases(mark):
    for phase in ("forward", "backward", "forward", "backward", "optimizer", None):
        mark(phase)
        torch.zeros(1)


def test_phases_follow_one_another_inside_the_step(watched):
    def act():
        with opened_phases("step") as mark:
            phases(mark)

    assert watched(act).ranges == (
        (0, "step"),
        (1, "forward"),
        (1, "backward"),
        (1, "forward"),
        (1, "backward"),
        (1, "optimizer"),
    )


def test_a_phase_that_fails_is_closed_with_its_step(watched):
    def act():
        with pytest.raises(ValueError), opened_phases("step") as mark:
            mark("forward")
            raise ValueError
        with opened("after"):
            pass

    assert watched(act).ranges == ((0, "step"), (1, "forward"), (0, "after"))


def test_nvtx_pushes_and_pops_are_balanced(nvtx):
    with opened_phases("step") as mark:
        mark("forward")
        with opened("block 0"):
            pass
        mark(None)
    assert nvtx == [
        *("peakward::step", "peakward::forward", "peakward::block 0"),
        *("pop", "pop", "pop"),
    ]


def test_nvtx_is_popped_where_the_step_fails(nvtx):
    with pytest.raises(ValueError), opened_phases("step") as mark:
        mark("backward")
        raise ValueError
    assert nvtx == ["peakward::step", "peakward::backward", "pop", "pop"]


@pytest.mark.skipif(torch.cuda.is_initialized(), reason="this process uses CUDA")
def test_without_cuda_there_is_no_nvtx(monkeypatch):
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", pytest.fail)
    with opened("step"):
        pass
