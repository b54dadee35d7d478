"""The handle of a model with levers at work in it: proved in place, applied, stepped and taken back."""

import copy
import time

import msgspec
import pytest
import torch
import torch.nn.functional as F

from peakward.lab.levers import fp8_layers
from peakward.lab.levers.in_place import Live
from peakward.lab.measure import in_turns
from peakward.lab.measure.live_module import live_case
from peakward.lab.models.given_module import given
from peakward.levers.catalogue import lever
from peakward.records.study import Unfinished
from peakward.tune.investigation import Aim
from peakward.tune.lever_stack import LeverStack
from peakward.tune.optimized import Optimized

BATCH = torch.arange(32).view(2, 16)


def scored(output, batch):
    return F.cross_entropy(output.flatten(0, 1), batch.flatten())


class Slow(torch.nn.Module):
    """Waits 90 ms, which no busy machine hides, but not where its result is in bf16."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        if y.dtype != torch.bfloat16:
            time.sleep(90e-3)
        return y.float().square().mean()


@pytest.fixture
def optimized(make_study):
    """optimized(model, *names, batch=): the handle of a model with these levers, and its `Live`."""

    def make(
        model,
        *names,
        batch=None,
        example=BATCH,
        loss=scored,
        patience_s=0.0,
        left=None,
        kind=torch.optim.AdamW,
        study=None,
    ):
        optimizer = kind(model.parameters(), lr=1e-2)
        live = Live(model=model, optimizer=optimizer)
        case = live_case(given((model, example)), "train_step")
        stack = LeverStack(base=case, levers=tuple(map(lever, names)))
        found = Optimized(
            msgspec.structs.replace(study or make_study(), unfinished=left),
            live,
            stack,
            loss=loss,
            batch=batch,
            aim=Aim(),
            until_s=time.monotonic() + patience_s,
        )
        return found, live

    return make


def state(live):
    return (
        {name: each.clone() for name, each in live.model.state_dict().items()},
        copy.deepcopy(live.optimizer.state_dict()),
        [each.grad for each in live.model.parameters()],
        torch.get_rng_state(),
    )


def test_levers_are_at_work_and_a_second_undo_does_nothing(optimized, tiny_gpt):
    model = tiny_gpt.GPT()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    found, live = optimized(model, "bf16-mixed", "fused-optimizer")
    assert found.levers == ("bf16-mixed", "fused-optimizer")
    assert found.configuration.precision == "bf16-mixed"
    assert live.optimizer.param_groups[0]["fused"]
    assert repr(found) == "Optimized(bf16-mixed + fused-optimizer: not timed)"
    assert found.undo() == ()
    assert found.undo() == ()
    assert (found.levers, found.configuration.precision) == ((), "fp32")
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert not live.optimizer.param_groups[0]["fused"]


def test_a_model_that_gave_no_time_is_told_with_its_reason(
    optimized, tiny_gpt, make_study, make_measurement
):
    failed = make_measurement(status="invalid", reason="expected a finite loss, got nan")
    left = Unfinished(budget_s=60.0, short_s=30.0, levers=("compile",), unconfirmed=())
    found, _ = optimized(tiny_gpt.GPT(), left=left, study=make_study(failed))
    assert "gave no time" in repr(found)
    assert "invalid: expected a finite loss, got nan." in repr(found)
    assert "budget" not in repr(found)


def test_what_was_not_tried_in_time_is_not_called_worse(optimized, tiny_gpt):
    found, _ = optimized(tiny_gpt.GPT())
    assert "Nothing was found that is better" in repr(found)
    left = Unfinished(budget_s=60.0, short_s=30.0, levers=("compile",), unconfirmed=("sdpa",))
    found, _ = optimized(tiny_gpt.GPT(), left=left)
    assert "The budget was too short to judge sdpa, compile" in repr(found)
    assert "Give a larger budget" in repr(found)


def test_a_step_trains_as_the_model_alone_does(optimized, tiny_gpt):
    torch.manual_seed(0)
    model = tiny_gpt.GPT().eval()
    twin = copy.deepcopy(model)
    found, live = optimized(model, "checkpointing")
    optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        loss = scored(twin(BATCH), BATCH)
        loss.backward()
        optimizer.step()
        assert torch.equal(found.step(BATCH), loss.detach())
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()), rtol=0, atol=0)
    assert found.undo() == ()
    found.step(BATCH)
    assert next(iter(live.optimizer.state.values()))["step"] == 3


def test_what_the_optimizer_trains_beside_the_model_gets_the_gradient_of_one_step(
    optimized, tiny_gpt
):
    scale = torch.nn.Parameter(torch.ones(()))
    found, live = optimized(
        tiny_gpt.GPT().eval(), loss=lambda output, batch: scored(output * scale, batch)
    )
    live.optimizer.add_param_group({"params": [scale]})
    for group in live.optimizer.param_groups:
        group["lr"] = 0.0
    found.step(BATCH)
    once = scale.grad.clone()
    found.step(BATCH)
    assert torch.equal(scale.grad, once)


def test_hooks_of_the_optimizer_are_off_in_the_proof_and_on_behind_it(
    optimized, tiny_gpt, monkeypatch
):
    calls = []

    def stepped_once(base, candidate, *_):
        for arm in (base, candidate):
            with arm() as step:
                step()
        raise RuntimeError("untimed")

    monkeypatch.setattr(in_turns, "pairs_of_turns", stepped_once)

    def hooked(parameters, lr):
        optimizer = torch.optim.AdamW(parameters, lr=lr)
        optimizer.register_step_post_hook(lambda *_: calls.append("stepped"))
        return optimizer

    found, _ = optimized(tiny_gpt.GPT(), "fused-optimizer", batch=BATCH, kind=hooked)
    assert calls == []
    assert found.notes[0].startswith("Hooks around the optimizer's step were off")
    found.step(BATCH)
    assert calls == ["stepped"]


def test_what_was_trained_in_less_precision_stays_and_is_told(optimized, tiny_gpt):
    found, _ = optimized(tiny_gpt.GPT(), "bf16")
    found.step(BATCH)
    lost = found.undo()
    assert "trained in bfloat16" in lost[0]
    assert found.report.notes[-1] == lost[0]


def test_what_proves_better_in_place_is_applied_and_changes_no_state(optimized):
    model, batch = Slow(), torch.ones(2, 4)
    twin = copy.deepcopy(model)
    rng = torch.get_rng_state()
    found, live = optimized(
        model, "bf16-mixed", batch=batch, example=batch, loss=None, patience_s=60.0
    )
    assert found.proof.verdict == "kept"
    assert found.proof.time_ratio.high < 0.5
    assert found.levers == ("bf16-mixed",)
    assert repr(found).startswith("Optimized(bf16-mixed: ")
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()), rtol=0, atol=0)
    assert live.optimizer.state == {}
    assert all(each.grad is None for each in model.parameters())
    assert torch.equal(torch.get_rng_state(), rng)


def test_what_is_not_better_in_place_is_taken_back(optimized, tiny_gpt):
    model = tiny_gpt.GPT()
    found, live = optimized(model, "checkpointing", batch=BATCH)
    assert found.proof.verdict != "kept"
    assert found.levers == ()
    assert found.notes[0].startswith("Taken back: in place it is not shown to be better")
    assert repr(found).startswith("Optimized(nothing applied: Taken back")
    assert type(model.blocks[0]).__mro__[0] is tiny_gpt.Block
    assert live.optimizer.state == {}


def test_what_does_not_run_in_place_is_taken_back(optimized):
    model, batch = Slow(), torch.ones(2, 4)
    found, _ = optimized(model, "checkpointing", batch=batch, example=batch, loss=None)
    assert found.levers == ()
    assert found.notes[0].startswith(
        "checkpointing is left out: expected a module that repeats blocks"
    )
    assert type(model) is Slow


class Careless(torch.nn.Module):
    """Two blocks that compute other values when a backward pass computes them again."""

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            again = torch._C._current_graph_task_id() != -1
            return (self.linear(x) * (1.001 if again else 1.0)).tanh()

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(self.Block(), self.Block())

    def forward(self, x):
        return self.blocks(x).square().mean()


def test_a_lever_whose_numbers_do_not_hold_is_left_out_and_named(optimized):
    torch.manual_seed(0)
    model, batch = Careless(), torch.randn(2, 4)
    names = ("fused-optimizer", "checkpointing")
    found, live = optimized(model, *names, batch=batch, example=batch, loss=None)
    assert found.notes[0].startswith("checkpointing is left out: gradients of blocks.")
    assert found.certificate.verdict == "holds"
    proved = found.proof.candidate.configuration
    assert (proved.optimizer, proved.checkpointing) == ("adamw-fused", "none")
    assert type(model.blocks[0]) is Careless.Block
    assert live.optimizer.state == {}


@pytest.fixture
def patched(monkeypatch):
    """In the place of a diff: the composition that it would be of."""
    monkeypatch.setattr("peakward.tune.optimized.text_of", lambda _study, at_work: at_work)


def test_a_patch_leaves_out_what_is_left_out_in_place(optimized, patched):
    torch.manual_seed(0)
    batch = torch.randn(2, 4)
    names = ("fused-optimizer", "checkpointing")
    found, _ = optimized(Careless(), *names, batch=batch, example=batch, loss=None)
    setting = found.patch().case.configuration
    assert (setting.optimizer, setting.checkpointing) == ("adamw-fused", "none")


def test_a_patch_has_the_layers_in_fp8_that_the_model_chose(optimized, patched, monkeypatch):
    won = fp8_layers.Times(plain_s=2e-3, fp8_s=1e-3)
    monkeypatch.setattr(fp8_layers, "timed", lambda _shape, _place: won)
    model, x = (
        torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)),
        torch.ones(16, 16),
    )
    found, _ = optimized(model, "fp8", example=x, loss=None)
    assert found.patch().linear is None
    model(x)
    assert found.patch().linear.taken == ("0",)
    found.undo()


class Doubling(torch.nn.Module):
    """Writes to its input."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x.mul_(2)).square().mean()


def test_a_module_that_writes_to_its_input_leaves_the_batch(optimized):
    batch = torch.ones(2, 4)
    found, _ = optimized(
        Doubling(), "fused-optimizer", batch=batch, example=batch.clone(), loss=None
    )
    assert found.certificate.verdict == "holds"
    assert torch.equal(batch, torch.ones(2, 4))


def test_the_mode_of_every_module_stays(optimized, tiny_gpt):
    model = tiny_gpt.GPT()
    model.blocks[0].eval()
    modes = [each.training for each in model.modules()]
    found, _ = optimized(model, "bf16-mixed", batch=BATCH)
    assert found.certificate.verdict == "holds"
    assert [each.training for each in model.modules()] == modes


class Stopped(Slow):
    """Meets Ctrl-C at a call of the caller's choice."""

    calls_left = 10**9

    def forward(self, x):
        self.calls_left -= 1
        if not self.calls_left:
            raise KeyboardInterrupt
        return super().forward(x)


@pytest.mark.parametrize("n_calls", [1, 5, 12])
def test_ctrl_c_leaves_nothing_applied(optimized, n_calls):
    model, batch = Stopped(), torch.ones(2, 4)
    twin = copy.deepcopy(model)
    model.calls_left = n_calls
    with pytest.raises(KeyboardInterrupt):
        optimized(model, "bf16", "fused-optimizer", batch=batch, example=batch, loss=None)
    assert type(model) is Stopped
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()), rtol=0, atol=0)


def test_a_notebook_shows_the_study_with_what_was_taken_back(optimized, tiny_gpt):
    found, _ = optimized(tiny_gpt.GPT())
    assert "the model is as it was" in found._repr_html_()
    assert found.to_dict()["notes"] == found.notes
