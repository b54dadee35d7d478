"""A step given as a function, with and without torch's settings around its call."""

import msgspec
import pytest
import torch

from peakward.lab.levers.given_step import Given, GivenStep, given_step, gradients_seen
from peakward.records.case import StepCase

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
    with given_step(case, BASE, Given(step=lambda: seen.append(settings()))) as step:
        step.step()
    assert seen == [inside]
    assert settings() == before == ("highest", True, True)


def test_what_the_user_set_stays_where_no_lever_changes_it():
    torch.set_float32_matmul_precision("medium")
    try:
        seen = []
        as_given = under(precision="tf32")
        step_ = Given(step=lambda: seen.append(torch.get_float32_matmul_precision()))
        with given_step(as_given, as_given, step_) as step:
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
    with given_step(BASE, BASE, Given(step=seen.append, loader=[4, 5])) as step:
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
