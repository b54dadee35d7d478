"""What a hunt puts back, replays and refuses."""

import math

import pytest
import torch
from torch import nn

import peakward as pw
from peakward.records.errors import PeakwardError

from .conftest import FAULT_AT, Run, Within, debugged


def test_a_step_that_counts_by_itself_is_told_so(run, batches):
    class Counts(run):
        def before(self, ids):
            if self.n_calls == FAULT_AT:
                with torch.no_grad():
                    self.model.head.bias[0] = math.nan

    found = debugged(Counts(), batches())
    assert found.outcome == "not reproduced" or found.outcome == "not repeatable"
    assert found.fault is None
    assert found.reason


def test_a_step_whose_losses_depend_on_a_counter_is_told_of_it(run, batches):
    class Cycles(run):
        def loss(self, logits, ids):
            factor = math.inf if self.n_calls == FAULT_AT else 1.0 + self.n_calls % 7
            return super().loss(logits, ids) * factor

    found = debugged(Cycles(), batches())
    assert found.outcome == "not repeatable"
    assert "a counter" in found.reason and "stateful=" in found.reason


def test_a_step_that_draws_from_a_generator_of_its_own_is_told_so(run, batches):
    generator = torch.Generator().manual_seed(3)

    class Draws(run):
        def loss(self, logits, ids):
            noise = torch.randn(logits.shape, generator=generator)
            factor = math.inf if self.n_calls == FAULT_AT else 1.0
            return super().loss(logits + noise, ids) * factor

    found = debugged(Draws(), batches())
    assert found.outcome == "not repeatable"
    assert "two replays disagree" in found.reason


@pytest.mark.parametrize(
    ("returned", "kind"),
    [
        (lambda loss: {"loss": loss}, "dict"),
        (lambda loss: (loss, 1), "tuple"),
        (lambda loss: loss.numpy(), "ndarray"),
    ],
)
def test_a_step_that_returns_something_else_is_refused(returned, kind, run, batches):
    one = run()
    with pytest.raises(
        PeakwardError, match=f"expected a step that returns its loss, .* got {kind}"
    ):
        pw.debug(lambda ids: returned(one(ids)), model=one.model, batches=batches())


def test_a_loss_that_is_a_number_is_located(run, batches):
    one = run()
    one.model.norm = Within(one.model.norm, lambda x: x / 0)

    def step(ids):
        loss = one.loss(one.model(ids), ids)
        if loss.isfinite():
            loss.backward()
        return loss.item()

    found = pw.debug(step, model=one.model, batches=batches())
    assert (found.outcome, found.fault.operator) == ("found", "aten.div.Tensor")
    assert (found.fault.module, found.fault.reached) == ("norm", "the loss")


def test_what_a_step_does_with_gradients_is_no_forward_pass(run, batches):
    class Normed(run):
        def __call__(self, ids):
            self.optimizer.zero_grad()
            loss = self.loss(self.model(ids), ids)
            loss.backward()
            gradient = self.model.head.weight.grad
            gradient /= gradient.norm() if self.model.steps != FAULT_AT else 0 * gradient.norm()
            self.optimizer.step()
            self.model.steps += 1
            return loss.detach()

    one = Normed()
    one.model.register_buffer("steps", torch.zeros((), dtype=torch.long))
    found = debugged(one, batches())
    assert (found.fault.phase, found.fault.step) == ("gradients", FAULT_AT)
    assert (found.cause.kind, found.fault.module) == ("division by zero", "")
    assert "in what the step does with gradients" in pw.markdown(found)


def test_a_loss_that_is_not_detached_brings_no_warning(run, batches, recwarn):
    one = run()

    def step(ids):
        loss = one.loss(one.model(ids), ids)
        return loss * (1.0 if ids.any() else math.inf)

    ids = next(batches())
    given = [ids, ids, ids, torch.zeros_like(ids)]
    torch.set_warn_always(True)
    try:
        found = pw.debug(step, model=one.model, batches=given)
    finally:
        torch.set_warn_always(False)
    assert found.n_steps == 4
    assert not [each for each in recwarn if "requires_grad" in str(each.message)]


class Masters(Run):
    """A model in bf16 whose parameters are copies of those in fp32, which the optimizer alone holds."""

    def __init__(self):
        super().__init__()
        self.model.bfloat16()
        self.model.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.masters = [each.detach().float() for each in self.model.parameters()]
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-2)

    def __call__(self, ids):
        self.model.zero_grad()
        self.model.calls += 1
        loss = self.loss(self.model(ids).float(), ids) / (self.model.calls <= FAULT_AT)
        loss.backward()
        with torch.no_grad():
            for mine, each in zip(self.masters, self.model.parameters(), strict=True):
                mine.grad = each.grad.float()
            self.optimizer.step()
            for mine, each in zip(self.masters, self.model.parameters(), strict=True):
                each.copy_(mine)
        return loss.detach()


def test_parameters_that_the_optimizer_alone_holds_are_put_back(batches):
    torch.manual_seed(0)
    one = Masters()
    found = debugged(one, batches())
    assert (found.fault.operator, found.fault.step) == ("aten.div.Tensor", FAULT_AT)
    assert (found.snapshot_step, found.replayed_bitwise) == (10, True)
    for mine, each in zip(one.masters, one.model.parameters(), strict=True):
        assert torch.equal(mine.bfloat16(), each)


def test_a_state_that_was_not_given_is_asked_for(batches):
    torch.manual_seed(0)
    one = Masters()
    found = pw.debug(one, model=one.model, batches=batches(), n_steps=40, snapshot_every=10)
    assert (found.outcome, found.fault) == ("not repeatable", None)
    assert "is no part of model, optimizer, stateful or batch" in found.reason
    assert "give the optimizer, and what else holds a state" in found.reason
    assert "self.optimizer.step()" in found.reason


class Accumulates(Run):
    """Adds up gradients, and updates at every so many calls. A batch of zeros has an infinite derivative."""

    def __init__(self, every):
        super().__init__()
        self.every = every
        self.model.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.model.blocks.append(Within(nn.Identity(), self.rooted))

    def rooted(self, x):
        return x if self.is_good else x + (0 * x).square().sqrt()

    def __call__(self, ids):
        self.is_good = bool(ids.any())
        loss = self.loss(self.model(ids), ids)
        loss.backward()
        self.model.calls += 1
        if int(self.model.calls) % self.every == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()


def with_zeros(batches, at):
    return [ids * (n != at) for n, ids in enumerate(batches(40))]


def test_a_gradient_of_an_earlier_micro_step_is_located_there(batches):
    torch.manual_seed(0)
    found = debugged(Accumulates(8), with_zeros(batches, 13))
    assert (found.outcome, found.snapshot_step) == ("found", 0)
    assert (found.fault.step, found.fault.phase) == (13, "backward")
    assert found.fault.derivative_of == "SqrtBackward0"
    assert found.fault.reached.startswith("gradient of ")
    assert [each.step for each in found.steps] == list(range(13))
    assert found.with_batch_before
    assert (found.cause.kind, found.trials[-1].fix) == ("infinite derivative", "skip batch")
    assert [(each.passes, each.n_steps) for each in found.trials] == [
        (False, 16),
        (False, 16),
        (True, 25),
    ]


def test_a_gradient_from_before_the_snapshots_is_told(batches):
    torch.manual_seed(0)
    found = debugged(Accumulates(32), with_zeros(batches, 3))
    assert (found.outcome, found.snapshot_step) == ("not repeatable", 20)
    assert "was not finite at step 20" in found.reason
    assert "take them less often" in found.reason


def test_a_row_that_no_loss_reads_for_long_is_found_at_a_snapshot(run, batches):
    """Token 10 is seen in batch 13 alone; its row turns non-finite there and reaches no loss."""
    one = run(optimizer=torch.optim.SGD)
    given = [ids.clamp_max(9) for ids in batches(60)]
    given[13][0, 0] = 10

    class Root(nn.Module):
        def forward(self, x):
            return x + (x - x.detach()).square().sum(-1, keepdim=True).sqrt() * self.is_rare

    root = Root()
    one.model.blocks.insert(0, root)

    def step(ids):
        root.is_rare = (ids == 10).unsqueeze(-1).float()
        one.optimizer.zero_grad()
        loss = one.loss(one.model(ids), ids)
        loss.backward()
        row = one.model.embedding.weight.grad
        row[:10] = row[:10].nan_to_num()
        one.model.head.weight.grad.nan_to_num_()
        one.optimizer.step()
        return loss.detach()

    found = pw.debug(
        step,
        model=one.model,
        optimizer=one.optimizer,
        batches=given,
        n_steps=60,
        snapshot_every=10,
    )
    assert (found.outcome, found.fault.step, found.snapshot_step) == ("found", 13, 10)
    assert found.fault.reached == "parameter embedding.weight"
    assert found.fault.derivative_of == "SqrtBackward0"
    assert found.n_steps == 30


def test_a_state_that_was_never_finite_is_told_so(run, batches):
    one = run()
    with torch.no_grad():
        one.model.head.bias[3] = math.inf
    found = debugged(one, batches())
    assert found.outcome == "not repeatable"
    assert found.reason.startswith("parameter head.bias was not finite before the first step")


def test_a_fault_that_is_not_located_leaves_the_good_state(run, batches):
    class Overwritten(run):
        def before(self, ids):
            if self.n_calls == FAULT_AT:  # Of this process, not of the state: no replay repeats it.
                with torch.no_grad():
                    self.model.head.bias[0] = math.nan

    one = Overwritten()
    found = debugged(one, batches())
    assert (found.outcome, found.snapshot_step) == ("not repeatable", 10)
    assert all(bool(each.isfinite().all()) for each in one.model.parameters())
    assert {int(each["step"]) for each in one.optimizer.state.values()} == {10}
