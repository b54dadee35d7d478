"""A live step's numbers under a lever, against the same step without."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from peakward.lab.levers import fp8_layers
from peakward.lab.measure.live_step import live_case
from peakward.lab.models.snapshot import restored
from peakward.lab.models.torch_settings import kept_settings
from peakward.lab.numerics.of_step import judge_step
from peakward.levers.catalogue import lever, pull
from peakward.records.lever import Claim


def judged(given, names=("sdpa-math",), declared="reordered"):
    base = live_case(given, name="step", tokens_per_step=None)
    candidate = base
    for name in names:
        candidate = pull(lever(name), candidate)
    kept = partial(restored, given.model, given.optimizer)
    claim = Claim(base=base, candidate=candidate, declared=declared)
    return judge_step(given, claim, kept=kept)


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


def test_a_step_that_draws_in_eval_mode_too_is_not_compared(make_step, monkeypatch):
    """A lever under which attention drops others."""
    attention = F.scaled_dot_product_attention
    given = make_step()

    def dropping(q, k, v, **settings):
        if not torch.backends.cuda.flash_sdp_enabled():
            torch.rand(1)
        return attention(F.dropout(q, 0.5), k, v, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", dropping)
    found = judged(given)
    assert found.verdict == "not computed"
    assert "draws random numbers in eval mode too" in found.reason


@pytest.fixture
def other_draws(monkeypatch):
    """A dropout that draws others under the math kernel of attention, and keeps `share` of what it should."""

    def make(share=1.0):
        dropout = F.dropout

        def dropped(x, p, training, inplace):
            if torch.backends.cuda.flash_sdp_enabled() or not training:
                return dropout(x, p, training, inplace)
            torch.rand(1)
            return dropout(x, p, training, inplace) * share

        monkeypatch.setattr(F, "dropout", dropped)

    return make


def test_other_draws_of_dropout_are_compared_by_their_mean(make_step, other_draws):
    other_draws()
    found = judged(make_step())
    assert found.verdict == "holds"
    assert "in eval mode" in found.reason
    assert [each.quantity for each in found.errors] == ["gradients", "loss"]


def test_a_setting_that_a_step_leaves_meets_no_other_arm(make_step, other_draws):
    """The step turns cuDNN's benchmarks on, or off where it finds them on."""
    other_draws()
    given = make_step()
    met = []

    def setting():
        chosen = torch.backends.cudnn.benchmark
        if not given.model.training:
            met.append(chosen)
        torch.backends.cudnn.benchmark = not chosen
        return given.step()

    with kept_settings():
        found = judged(make_step(step=setting, model=given.model, optimizer=given.optimizer))
    assert found.verdict == "holds"
    assert len(met) == 3
    assert set(met) == {met[0]}


def test_dropout_of_another_mean_is_violated(make_step, other_draws):
    other_draws(share=3.0)
    found = judged(make_step())
    assert found.verdict == "violated"
    assert "with dropout: the means of 8 losses differ" in found.reason


@pytest.mark.parametrize(
    ("name", "declared"),
    [("bf16-mixed", "approximate"), ("bf16", "approximate"), ("checkpointing", "exact")],
)
def test_levers_of_the_model_hold_to_their_class(name, declared, make_step):
    found = judged(make_step(), (name,), declared)
    assert found.verdict == "holds", found
    assert {each.bound for each in found.errors} == {
        2.0**-8 * 34**0.5 if declared == "approximate" else 0.0
    }
    assert all(each.candidate_error > 0 for each in found.errors) == (declared == "approximate")


def test_a_coarser_precision_than_its_class_is_violated(make_step):
    """bf16 where fp32 is promised."""
    given = make_step()
    assert judged(given, ("bf16-mixed",), "reordered").verdict == "holds"  # By its own roundoff.
    assert judged(given, ("bf16-mixed",), "exact").verdict == "violated"


def test_an_optimizer_s_lever_is_held_to_the_update(make_step):
    found = judged(make_step(), ("fused-optimizer",))
    assert found.verdict == "holds"
    errors = {each.quantity: each for each in found.errors}
    assert errors.keys() == {"gradients", "loss", "parameters"}
    assert errors["gradients"].candidate_error == errors["gradients"].bound == 0.0
    assert 0 < errors["parameters"].candidate_error < errors["parameters"].bound == 2.0**-22


def test_an_update_of_another_rate_is_violated(make_step, monkeypatch):
    step = torch.optim.AdamW.step

    def faster(self, closure=None):
        for group in self.param_groups:
            group["lr"] = 1.001e-3 if group["fused"] else 1e-3
        return step(self, closure)

    given = make_step()
    monkeypatch.setattr(torch.optim.AdamW, "step", faster)
    found = judged(given, ("fused-optimizer",))
    assert (found.verdict, found.reason) == ("violated", "parameters")


def test_an_update_within_the_roundings_of_its_type_proves_nothing(make_step, monkeypatch):
    """In bf16 an optimizer that does nothing is as near as one that may be right."""
    step = torch.optim.AdamW.step

    def idle(self, closure=None):
        return None if self.param_groups[0]["fused"] else step(self, closure)

    given = make_step()
    given.model.bfloat16()
    given.optimizer.param_groups[0]["lr"] = 1e-5
    assert judged(given, ("fused-optimizer",)).verdict == "holds"
    monkeypatch.setattr(torch.optim.AdamW, "step", idle)
    found = judged(given, ("fused-optimizer",))
    assert found.verdict == "not computed"
    assert "the whole update is" in found.reason
    assert judged(make_step(), ("fused-optimizer",)).reason == "parameters"


def test_an_update_that_the_step_does_not_make_is_not_compared(make_step):
    given = make_step()

    def step():
        loss = given.model(torch.zeros(2, 8).long()).square().mean()
        loss.backward()
        return loss

    idle = make_step(step=step, model=given.model, optimizer=given.optimizer)
    found = judged(idle, ("fused-optimizer",))
    assert found.verdict == "not computed"
    assert "no update can be compared" in found.reason


class Drawn(Dataset):
    """Samples by index; `own` draws them from the process's generator instead."""

    def __init__(self, *, own):
        self.own = own

    def __len__(self):
        return 4

    def __getitem__(self, place):
        return torch.randint(50, (16,)) if self.own else (torch.arange(16) + place) % 50


def test_a_loader_with_workers_holds_by_its_batches(make_step):
    """Without a model too."""
    for model in ({}, {"model": None}):
        loader = DataLoader(Drawn(own=False), batch_size=2, shuffle=True)
        found = judged(make_step(fed=True, loader=loader, **model), ("workers-2",), "exact")
        assert (found.verdict, found.errors) == ("holds", ())
        assert "the first 8 batches are the same" in found.reason


def test_a_data_set_that_draws_is_another_in_its_workers(make_step):
    loader = DataLoader(Drawn(own=True), batch_size=2)
    found = judged(make_step(fed=True, loader=loader), ("workers-2",), "exact")
    assert found.verdict == "violated"
    assert "other batches among the first 8" in found.reason


def test_a_loader_that_does_not_repeat_itself_proves_nothing(make_step):
    count = itertools.count()
    loader = DataLoader(
        Drawn(own=False), batch_size=2, collate_fn=lambda _: torch.ones(2) * next(count)
    )
    found = judged(make_step(fed=True, loader=loader), ("workers-2",), "exact")
    assert found.verdict == "not computed"
    assert "begun twice from one state, gives other batches" in found.reason


def test_in_fp8_scales_of_windows_are_judged(make_step, monkeypatch, request):
    won = fp8_layers.Times(plain_s=2e-3, fp8_s=1e-3)
    monkeypatch.setattr(fp8_layers, "timed", lambda _shape, _place: won)
    assert judged(make_step(), ("fp8",), "approximate").verdict == "holds"
    request.getfixturevalue("wrong_by_windows")
    assert judged(make_step(), ("fp8",), "approximate").verdict == "violated"
