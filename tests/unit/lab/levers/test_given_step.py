"""A step given as a function, with and without torch's settings around its call."""

import dataclasses
import functools
import itertools

import msgspec
import pytest
import torch
import torch.nn.functional as F

from peakward.lab.levers import fp8_layers
from peakward.lab.levers import given_step as levers_of_steps
from peakward.lab.levers.given_step import (
    Given,
    GivenStep,
    StepSeen,
    check_step,
    expect_step,
    given_step,
    gradients_seen,
    schedulers,
)
from peakward.lab.measure.live_step import StepWorkers, live_case
from peakward.levers.catalogue import lever
from peakward.records.case import StepCase
from peakward.records.errors import PeakwardError

BASE = StepCase(name="step", fingerprint="", device="cpu")


def under(**configuration):
    changed = msgspec.structs.replace(BASE.configuration, **configuration)
    return msgspec.structs.replace(BASE, configuration=changed)


def settings():
    return (
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
    )


@pytest.mark.parametrize(
    ("case", "inside"),
    [
        (BASE, ("highest", True, True)),
        (under(precision="tf32"), ("high", True, True)),
        (under(attention="sdpa-math"), ("highest", True, False)),
        (under(precision="tf32", attention="sdpa-flash"), ("high", False, True)),
    ],
)
def test_settings_hold_around_the_call_alone(case, inside):
    before, seen = settings(), []
    with given_step(case, Given(step=lambda: seen.append(settings()))) as step:
        step.step()
    assert seen == [inside]
    assert settings() == before == ("highest", True, True)


@pytest.mark.parametrize(
    ("settings", "seen"),
    [
        ({}, (False, torch.float32, False)),
        ({"precision": "bf16-mixed"}, (True, torch.float32, False)),
        ({"precision": "bf16"}, (False, torch.bfloat16, False)),
        ({"optimizer": "adamw-fused"}, (False, torch.float32, True)),
    ],
)
def test_levers_reach_the_model_and_the_optimizer_while_they_last(settings, seen, make_step):
    given = make_step()
    found = []
    given.model.blocks[0].register_forward_hook(
        lambda *_: found.append(torch.is_autocast_enabled("cpu"))
    )

    def now():
        fused = [bool(group["fused"]) for group in given.optimizer.param_groups]
        return next(given.model.parameters()).dtype, fused[0]

    with given_step(under(**settings), given) as step:
        step.step()
        assert (found[-1], *now()) == seen
    assert now() == (torch.float32, False)


def test_what_the_user_set_stays_where_no_lever_changes_it():
    torch.set_float32_matmul_precision("medium")
    try:
        seen = []
        as_given = under(precision="tf32")
        as_given = msgspec.structs.replace(as_given, written=as_given.configuration)
        step_ = Given(step=lambda: seen.append(torch.get_float32_matmul_precision()))
        with given_step(as_given, step_) as step:
            step.step()
        assert seen == ["medium"]
    finally:
        torch.set_float32_matmul_precision("highest")


def test_no_graph_behind_what_is_returned_is_kept():
    weight = torch.ones(2, requires_grad=True)
    step = GivenStep(Given(step=lambda: {"loss": weight.sum(), "what": "text"}), None)
    step.step()
    assert [each.grad_fn for each in step.returned] == [None]
    assert step.loss() == 2.0


def test_a_loader_s_batches_are_its_arguments():
    seen = []
    with given_step(BASE, Given(step=seen.append, loader=[4, 5])) as step:
        step.step(), step.step(), step.step()
        assert len(step.waited(3).wait_s) == 3
    assert seen == [4, 5, 4]
    assert GivenStep(Given(step=print), None).waited(1) is None


def test_gradients_are_seen_though_the_step_sets_them_free(make_step):
    given = make_step()
    with gradients_seen(given.model) as seen:
        given.step()
    assert all(each.grad is None for each in given.model.parameters())
    assert seen.keys() == dict(given.model.named_parameters()).keys()
    assert all(each.abs().sum() > 0 for each in (seen["head.weight"], seen["embedding.weight"]))
    given.model(torch.zeros(1, 4).long()).sum().backward()
    kept = seen["head.weight"].clone()
    given.model(torch.zeros(1, 4).long()).sum().backward()
    assert torch.equal(kept, seen["head.weight"]), "the hooks are gone"


def test_its_layers_compute_in_fp8_in_its_own_autocast(make_step, monkeypatch):
    won = fp8_layers.Times(plain_s=2e-3, fp8_s=1e-3)
    monkeypatch.setattr(fp8_layers, "timed", lambda _shape, _place: won)
    given, seen = make_step(), []
    given.model.head.register_forward_hook(lambda _layer, _args, y: seen.append(y.dtype))

    def cast():
        with torch.autocast("cpu", torch.bfloat16):
            return given.step()

    inside = dataclasses.replace(given, step=cast)
    written = msgspec.structs.replace(BASE.configuration, precision="bf16-mixed")
    fp8 = msgspec.structs.replace(written, precision="fp8")
    case = msgspec.structs.replace(BASE, written=written, configuration=fp8)
    with given_step(case, inside) as step:
        step.step()
        assert sum(each.n_taken for each in step.linear_choice.layers) == 8
    assert seen == [torch.bfloat16] * 2, "one pass shows the shapes, and one is the step's"
    assert fp8_layers.choice_in(given.model) is None


def test_a_good_step_passes_and_its_attention_is_seen(make_step):
    for sdpa, n in ((True, 2), (False, 0)):
        given = make_step(sdpa=sdpa)
        expect_step(given)
        assert check_step(given, "cpu").attention.n == n


def test_the_calls_of_the_model_are_seen(make_step):
    given, another = make_step(), make_step().model

    def cast():
        with torch.autocast("cpu", torch.bfloat16):
            return given.step()

    def other():
        return another(torch.zeros(1, 4).long()).sum()

    whole = {"model": given.model, "optimizer": given.optimizer}
    plain, inside, apart = (
        check_step(Given(step=each, **whole), "cpu") for each in (given.step, cast, other)
    )
    assert (plain.precision, plain.calls_model) == (None, True)
    assert inside.precision == "bf16-mixed"
    assert not apart.calls_model
    case = live_case(given, name="step", tokens_per_step=None, seen=inside)
    assert case.configuration.precision == "bf16-mixed"
    assert "which computes in bf16-mixed" in inside.obstacle(lever("bf16"), case)
    assert inside.obstacle(lever("fp8"), case) is None
    assert inside.obstacle(lever("compile"), case) is None
    assert not inside.loss_in_model
    assert "in the place of its loss" in inside.obstacle(lever("fused-loss"), case)
    assert StepSeen(attention=inside.attention).obstacle(lever("fused-loss"), case) is None
    assert "calls another than was given" in apart.obstacle(lever("compile"), BASE)
    assert apart.obstacle(lever("fused-optimizer"), BASE) is None


Q = torch.rand(1, 2, 4, 8)


@pytest.mark.parametrize(
    ("computes", "attention"),
    [
        (lambda: torch.softmax(Q @ Q.mT, -1) @ Q, "naive"),
        (lambda: (Q @ Q.mT).softmax(dim=-1) @ Q, "naive"),
        (lambda: torch.nn.functional.softmax(input=Q @ Q.mT, dim=-1), "naive"),
        (lambda: (Q @ Q.mT).softmax(3), "naive"),
        (lambda: Q[0].softmax(-1), "as-written"),
        (lambda: Q.softmax(1), "as-written"),
        (lambda: F.scaled_dot_product_attention(Q, Q, Q) + Q.softmax(-1), "as-written"),
    ],
    ids=["function", "method", "keyword", "place", "router", "heads", "sdpa"],
)
def test_a_live_step_says_whether_its_attention_is_written_out(computes, attention):
    given = Given(step=computes)
    seen = check_step(given, "cpu")
    case = live_case(given, name="step", tokens_per_step=None, seen=seen)
    assert case.written.attention == case.configuration.attention == attention


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
        PeakwardError, match=r"again and again, got RuntimeError.*test_given_step.py"
    ):
        check_step(Given(step=step), "cpu")

    class Broken(levers_of_steps.GivenStep):
        def step(self):
            raise AssertionError("ours")

    Broken.step.__code__ = Broken.step.__code__.replace(co_filename=levers_of_steps.__file__)
    monkeypatch.setattr(levers_of_steps, "GivenStep", Broken)
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

    class OnGpu(levers_of_steps.ShapesSeen):
        def __exit__(self, *error):
            self.device_types.add("cuda")
            return super().__exit__(*error)

    monkeypatch.setattr(levers_of_steps, "ShapesSeen", OnGpu)
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

    assert check_step(make_step(fed=True, loader=Loader()), "cpu").attention.n == 2


class Trainer:
    def __init__(self):
        self.parameter = torch.nn.Parameter(torch.ones(2))
        self.optimizer = torch.optim.SGD([self.parameter], lr=0.5)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)

    def step(self):
        self.optimizer.zero_grad()
        self.parameter.sum().backward()
        self.optimizer.step()
        self.scheduler.step()

    __call__ = step

    def in_a_function(self):
        optimizer, scheduler, parameter = self.optimizer, self.scheduler, self.parameter

        def step():
            optimizer.zero_grad()
            parameter.sum().backward()
            optimizer.step()
            scheduler.step()

        return step

    def in_a_list(self):
        optimizer, named = self.optimizer, [self.scheduler]

        def step():
            optimizer.step()
            for each in named:
                each.step()

        return step


def called(trainer):
    def step():
        trainer.step()

    return step


STEPS = {
    "an object": lambda trainer: trainer,
    "its method": lambda trainer: trainer.step,
    "a call of its method": called,
    "a function": lambda trainer: trainer.in_a_function(),
    "a list": lambda trainer: trainer.in_a_list(),
    "a partial": lambda trainer: functools.partial(trainer.in_a_function()),
}


class NotYet:
    """As libraries stand in for an object that a call makes later."""

    def __getattr__(self, name):
        raise RuntimeError(f"call init before {name}")


def test_what_a_step_names_is_asked_for_no_attribute():
    scheduler, run = Trainer().scheduler, NotYet()

    def step():
        run.log()
        scheduler.step()

    assert schedulers(step) == (scheduler,)


@pytest.mark.parametrize("kind", STEPS)
def test_the_scheduler_that_a_step_steps_is_where_it_was(kind):
    trainer = Trainer()
    step = STEPS[kind](trainer)
    assert schedulers(step) == (trainer.scheduler,)
    step()
    before = dict(trainer.scheduler.state_dict())
    workers = StepWorkers(Given(step=step, optimizer=trainer.optimizer))
    workers.check_step()
    assert trainer.scheduler.state_dict() == before
    assert trainer.optimizer.param_groups[0]["lr"] == 0.5
    step()
    assert trainer.optimizer.param_groups[0]["lr"] == 0.05
