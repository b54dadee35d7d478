"""`pw.optimize` and `pw.apply`: the best composition, at work in the user's own model."""

import functools
import time

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader

import peakward as pw
from peakward.api import optimizing
from peakward.levers.catalogue import lever
from peakward.levers.optimizer import form_of


class Waits(torch.nn.Module):
    """Two blocks, which wait 5 ms unless they are in bf16."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(Block(), Block())

    def forward(self, x):
        return self.blocks(x).square().mean()


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        if y.dtype != torch.bfloat16:
            time.sleep(30e-3)
        return y


BATCH = torch.ones(2, 4, 8)
IMPL = "_compiled_call_impl"


def test_the_best_is_found_applied_proved_and_taken_back(calibrated):
    torch.manual_seed(0)
    model = Waits()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    names = list(model.state_dict())
    found = pw.optimize(
        model,
        loader=DataLoader(BATCH.expand(4, 2, 4, 8), batch_size=None),
        optimizer=optimizer,
        levers=("bf16-mixed",),
        budget="10m",  # More than it takes, however busy the machine is.
    )
    assert found.levers == ("bf16-mixed",)
    assert found.proof.time_ratio.high < 1
    assert [each.lever for each in found.report.trials] == ["bf16-mixed"]
    assert list(model.state_dict()) == names
    assert optimizer.state == {}
    found.undo()
    found.report.save("found.json")
    again = pw.apply("found.json", model, optimizer)
    assert again.levers == ("bf16-mixed",)
    assert again.proof is None
    again.undo()
    (trial,) = found.report.trials
    both = msgspec.structs.replace(trial, lever="bf16-mixed + fused-optimizer")
    together = pw.apply(msgspec.structs.replace(found.report, trials=(both,)), model, optimizer)
    assert together.levers == ("bf16-mixed", "fused-optimizer"), "proved as one step"
    together.undo()
    with pytest.raises(
        pw.PeakwardError, match="expected a Waits, which the study is of, got a Block"
    ):
        pw.apply(found.report, Block())
    model.blocks[1] = torch.nn.Linear(8, 8)
    with pytest.raises(pw.PeakwardError, match="expected the parameters that the study is of"):
        pw.apply(found.report, model)


@pytest.mark.parametrize(
    ("optimizer", "name", "said"),
    [
        (torch.optim.AdamW, "triton-optimizer", "it is another optimizer"),
        (torch.optim.SGD, "fused-optimizer", "a form of torch's AdamW, got SGD"),
    ],
)
def test_a_lever_that_the_optimizer_cannot_take_is_refused(optimizer, name, said, calibrated):
    model = Waits()
    with pytest.raises(pw.PeakwardError, match=said):
        pw.optimize(model, BATCH, optimizer=optimizer(model.parameters(), lr=1e-3), levers=(name,))


def test_the_search_tells_that_adamw_stands_in_for_another_optimizer(monkeypatch, make_study):
    asked = []
    monkeypatch.setattr(
        optimizing, "on_copies", lambda each, *_: asked.append(each) or make_study()
    )
    model = Waits()
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        pw.optimize(model, BATCH, optimizer=kind(model.parameters(), lr=1e-3), budget=5)
    of_sgd, of_adamw = asked
    assert "in the place of SGD" in of_sgd.given[0]
    assert of_adamw.given == ()
    fused = lever("fused-optimizer")
    assert "a form of torch's AdamW" in of_sgd.obstacle(fused, of_sgd.case)
    assert of_adamw.obstacle(fused, of_adamw.case) is None
    # Nothing is then found about the passes of an update that is not theirs.
    assert of_sgd.case.configuration.optimizer == "adamw-fused"


def test_a_model_whose_steps_crash_is_refused_with_the_reason(
    monkeypatch, make_study, make_measurement
):
    crashed = make_measurement(status="crashed", reason="KeyError: 3")
    monkeypatch.setattr(optimizing, "on_copies", lambda *_: make_study(crashed))
    with pytest.raises(pw.PeakwardError, match="stepped on the batch, got KeyError: 3"):
        pw.optimize(Waits(), BATCH, budget=5)


def test_an_optimizer_of_another_model_is_refused():
    other = torch.optim.AdamW(Waits().parameters())
    with pytest.raises(
        pw.PeakwardError, match="of the model's parameters, got AdamW that holds none"
    ):
        pw.optimize(Waits(), BATCH, optimizer=other, budget=5)


class Wants(torch.nn.Module):
    """Its batch may lack an input, or be written to."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x, scale):
        return self.linear(x) * scale


def on_two_devices():
    model = Waits()
    model.blocks[1] = Block().to("meta")
    return model


class FullyShardedDataParallel(Waits):
    """Named as torch's."""


def compiled_inside():
    model = Waits()
    model.blocks[0].compile()
    return model


def whole(model):
    model.compile()
    return model


def by_blocks(model):
    for each in model.blocks:
        each.compile()
    return model


@pytest.mark.parametrize(
    ("compiled", "scope"),
    [
        pytest.param(torch.compile, "model", id="wrapped"),
        pytest.param(whole, "model", id="whole", marks=pytest.mark.full),
        pytest.param(by_blocks, "block", id="blocks"),
    ],
)
def test_a_compiled_model_is_the_start_and_compiled_again_when_all_is_taken_back(
    compiled, scope, calibrated, monkeypatch
):
    # Dynamo traced 72 graphs here for nothing: in place of a compiled call another that computes the same.
    monkeypatch.setattr(
        torch.nn.Module,
        "compile",
        lambda self, **_: setattr(self, IMPL, functools.partial(self._call_impl)),
    )
    model = Waits()
    given = compiled(model, backend="eager") if compiled is torch.compile else compiled(model)
    before = [vars(each).get(IMPL) for each in model.modules()]
    found = pw.optimize(given, BATCH, levers=("bf16-mixed",), budget="10m")
    base = found.report.trials[0].base.configuration
    assert (base.compile, base.compile_scope) == ("default", scope)
    assert found.levers == ("bf16-mixed",)
    assert any("`._orig_mod`" in each for each in found.notes) == (given is not model)
    at_work = [vars(each).get(IMPL) for each in model.modules()]
    assert [each is not None for each in at_work] == [
        each is model if scope == "model" else each in set(model.blocks) for each in model.modules()
    ]
    with pytest.raises(pw.PeakwardError, match="expected a model that is not compiled yet"):
        found.patch()
    found.undo()
    after = [vars(each).get(IMPL) for each in model.modules()]
    assert all(a is b for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize(
    ("make", "loss", "said"),
    [
        (Wants, None, "missing 1 required positional argument: 'scale'"),
        (on_two_devices, None, "expected a module on one device"),
        (Waits, lambda loss: loss.expand(2), "expected a loss of one element"),
        (Waits, lambda loss: loss.detach(), "expected a loss that depends on a parameter"),
        (lambda: torch.nn.Sequential(torch.compile(Waits())), None, "its `._orig_mod`"),
        (lambda: torch.nn.DataParallel(Waits()), None, "give what it wraps, its `.module`"),
        (FullyShardedDataParallel, None, "whose parameters are sharded"),
        (compiled_inside, None, "`.compile\\(\\)` was called on in blocks.0: leave that out"),
    ],
)
def test_what_cannot_be_is_one_line(make, loss, said, calibrated):
    with pytest.raises(pw.PeakwardError, match=said) as refused:
        pw.optimize(make(), BATCH, loss=loss)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "form"),
    [({}, "adamw-loop"), ({"foreach": True}, "adamw-foreach"), ({"fused": True}, "adamw-fused")],
)
def test_the_form_of_the_update_is_found(flags, form):
    optimizer = torch.optim.AdamW(Waits().parameters(), **flags)
    assert form_of(optimizer, "cpu") == form
