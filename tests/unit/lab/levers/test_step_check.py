"""What is wrong with a step, told before anything is measured."""

import functools
import itertools

import pytest
import torch

from peakward.lab.levers import step_check
from peakward.lab.levers.given_step import Given
from peakward.lab.levers.step_check import check_step, expect_step
from peakward.records.errors import PeakwardError


def test_a_good_step_passes_and_its_attention_is_seen(make_step):
    for sdpa, n in ((True, 2), (False, 0)):
        given = make_step(sdpa=sdpa)
        expect_step(given)
        assert check_step(given, "cpu").n == n


def of_two(one, other):
    return one, other


COMPILED = torch.compile(lambda: None)
GRAPH_MODULE = torch.compile(torch.nn.Linear(2, 2))


class Trainer:
    """A step as a method, of what its object holds."""

    def __init__(self, net):
        self.net = net

    def step(self):
        return self.net

    def __call__(self):
        return self.net


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (Given(step=3), "expected a step that is a function of no arguments, got int"),
        (Given(step=print, model=3), "expected a torch.nn.Module for model, got int"),
        (
            Given(step=of_two),
            "called so: missing a required argument: 'one'; a step of a batch needs loader=",
        ),
        (
            Given(step=of_two, loader=[1]),
            "of a batch alone, .* missing a required argument: 'other'",
        ),
        (Given(step=print, loader=iter([1])), "a loader that can be begun again"),
        (Given(step=COMPILED), "not compiled, got the step compiled"),
        (Given(step=lambda: [COMPILED()]), "not compiled, got COMPILED compiled"),
        (Given(step=lambda: GRAPH_MODULE(1)), "got OptimizedModule"),
        (Given(step=Trainer(GRAPH_MODULE).step), "got OptimizedModule"),
        (Given(step=Trainer(GRAPH_MODULE)), "got OptimizedModule"),
        (Given(step=functools.partial(of_two, 1, GRAPH_MODULE)), "got OptimizedModule"),
        (Given(step=lambda: None, model=GRAPH_MODULE), "got OptimizedModule"),
    ],
)
def test_what_is_no_step(given, line):
    with pytest.raises(PeakwardError, match=line) as caught:
        expect_step(given)
    assert "\n" not in str(caught.value)


def test_a_captured_step():
    graph = object.__new__(torch.cuda.CUDAGraph)
    with pytest.raises(PeakwardError, match="not captured, got a CUDA graph in graph"):
        expect_step(Given(step=lambda: [graph.replay()]))


def test_a_step_that_raises_is_told_from_a_fault_of_ours(monkeypatch):
    def step():
        torch.ones(2) @ torch.ones(3)

    with pytest.raises(
        PeakwardError, match=r"again and again, got RuntimeError.*test_step_check.py"
    ):
        check_step(Given(step=step), "cpu")

    class Broken(step_check.GivenStep):
        def step(self):
            raise AssertionError("ours")

    Broken.step.__code__ = Broken.step.__code__.replace(co_filename=step_check.__file__)
    monkeypatch.setattr(step_check, "GivenStep", Broken)
    with pytest.raises(AssertionError, match="ours"):
        check_step(Given(step=lambda: None), "cpu")


def test_shapes_that_change_from_call_to_call():
    sizes = itertools.count(1)
    with pytest.raises(PeakwardError, match="same shapes at every call"):
        check_step(Given(step=lambda: torch.ones(next(sizes)) + 1), "cpu")


def test_a_loader_that_ends():
    left = iter([torch.ones(1)])

    class Once:
        def __iter__(self):
            return left

    with pytest.raises(PeakwardError, match="a batch for every step"):
        check_step(Given(step=lambda _: None, loader=Once()), "cpu")


def test_a_model_by_which_nothing_can_be_verified():
    with pytest.raises(PeakwardError, match="leaves gradients of the model, or returns its loss"):
        check_step(Given(step=lambda: None, model=torch.nn.Linear(2, 2)), "cpu")


def test_a_step_on_another_device_than_it_would_be_timed_by(make_step, monkeypatch):
    with pytest.raises(
        PeakwardError, match=r"computes on the GPU, .* on the CPU alone: give the model"
    ):
        check_step(make_step(), "cuda")

    class OnGpu(step_check.ShapesSeen):
        def __exit__(self, *error):
            self.device_types.add("cuda")
            return super().__exit__(*error)

    monkeypatch.setattr(step_check, "ShapesSeen", OnGpu)
    with pytest.raises(
        PeakwardError, match=r"computes on the CPU, .* on a GPU too: give the model"
    ):
        check_step(make_step(), "cpu")
    check_step(make_step(), "cuda")


def test_what_a_loader_does_is_no_part_of_the_step(make_step):
    """Its sampler draws at some calls and not at others."""

    class Loader:
        def __iter__(self):
            for n in itertools.count():
                torch.randperm(n)
                yield torch.zeros(2, 16).long()

    assert check_step(make_step(fed=True, loader=Loader()), "cpu").n == 2
