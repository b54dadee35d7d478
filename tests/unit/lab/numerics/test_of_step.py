"""A live step's numbers under a lever, against the same step without."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from peakward.lab.measure.live_step import live_case
from peakward.lab.measure.snapshot import restored
from peakward.lab.numerics.of_step import judge_step
from peakward.levers.catalogue import lever, pull


def judged(given, names=("sdpa-math",), declared="reordered"):
    base = live_case(given, name="step", tokens_per_step=None)
    candidate = base
    for name in names:
        candidate = pull(lever(name), candidate)
    kept = partial(restored, given.model, given.optimizer)
    return judge_step(given, base, base, candidate, declared=declared, kept=kept)


@pytest.mark.parametrize("name", ["sdpa-math", "sdpa-flash"])
def test_another_kernel_of_attention_holds(name, make_step):
    found = judged(make_step(), (name,))
    assert found.verdict == "holds"
    assert [each.quantity for each in found.errors] == ["gradients", "loss"]
    assert all(each.base_error == 0.0 for each in found.errors)
    assert all(0 < each.bound < 1e-4 for each in found.errors)
    assert "for want of an fp64 oracle" in found.reason


def test_the_two_kernels_do_differ(make_step):
    found = judged(make_step(), ("sdpa-math",))
    assert any(each.candidate_error > 0 for each in found.errors)


def test_a_kernel_that_computes_something_else_is_violated(make_step, monkeypatch):
    attention = F.scaled_dot_product_attention

    def wrong(q, k, v, **settings):
        slightly = 1.0 if torch.backends.cuda.flash_sdp_enabled() else 1.001
        return attention(q * slightly, k, v, **settings)

    given = make_step()
    monkeypatch.setattr(F, "scaled_dot_product_attention", wrong)
    found = judged(given)
    assert (found.verdict, found.reason) == ("violated", "gradients")


def test_tf32_is_held_to_its_own_roundoff(make_step):
    """On a CPU torch ignores it, so that nothing differs; the bound is that of two layers."""
    found = judged(make_step(), ("tf32",), "approximate")
    assert found.verdict == "holds"
    assert {each.bound for each in found.errors} == {2.0**-11 * 34**0.5}


def test_the_state_is_as_before(make_step):
    given = make_step()
    before = {name: each.clone() for name, each in given.model.state_dict().items()}
    judged(given)
    assert all(torch.equal(before[name], x) for name, x in given.model.state_dict().items())
    assert not given.optimizer.state


def test_one_batch_of_the_loader_serves_all(make_step):
    given = make_step(fed=True, loader=DataLoader(torch.arange(64).view(4, 16) % 50, shuffle=True))
    assert judged(given).verdict == "holds"


def test_what_cannot_be_told(make_step):
    assert "no model was given" in judged(make_step(model=None)).reason
    flat = make_step(model=torch.nn.Linear(2, 2))
    assert "repeats no blocks" in judged(flat).reason
    given = make_step()
    factors = itertools.count(1)
    plain = given.step

    def step():
        loss = plain()
        return loss * next(factors)

    found = judged(make_step(step=step, model=given.model, optimizer=given.optimizer))
    assert found.verdict == "not computed"
    assert "called twice from one state, gave other loss" in found.reason


def test_attention_that_drops_is_not_compared(make_step, monkeypatch):
    attention = F.scaled_dot_product_attention
    given = make_step()

    def dropping(q, k, v, **settings):
        return attention(q, k, v, dropout_p=0.5, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", dropping)
    found = judged(given)
    assert found.verdict == "not computed"
