"""A model inside torch's DistributedDataParallel: searched, proved and predicted by the module inside."""

import time

import pytest
import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import peakward as pw
from peakward.api import live_steps
from peakward.lab.levers.in_place import Applied, Live
from peakward.levers.catalogue import lever, with_settings
from peakward.records.case import AS_WRITTEN
from tiers import rows_in_full

IDS = torch.zeros(2, 16, dtype=torch.long)
BATCH = torch.ones(2, 4, 8)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        if y.dtype != torch.bfloat16:
            time.sleep(30e-3)
        return y


class Waits(nn.Module):
    """Two blocks, which wait 30 ms unless they are in bf16."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x):
        return self.blocks(x).square().mean()


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    """A group of this process alone."""
    meeting = tmp_path_factory.mktemp("group") / "meeting"
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def of_two(monkeypatch):
    """of_two(): from then on the group says that it has two processes."""
    return lambda: monkeypatch.setattr(torch.distributed, "get_world_size", lambda _group=None: 2)


def state_of(model):
    return (
        [type(each) for each in model.modules()],
        [vars(each).get("_compiled_call_impl") for each in model.modules()],
        [id(each) for each in model.parameters()],
        torch._dynamo.config.optimize_ddp,
    )


@pytest.mark.full
def test_levers_are_proved_beneath_it_and_taken_back_and_other_processes_apply_them(
    calibrated, of_two
):
    torch.manual_seed(0)
    model = DistributedDataParallel(Waits())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before = state_of(model)
    found = pw.optimize(model, BATCH, optimizer=optimizer, levers=("bf16-mixed",), budget="10m")
    assert found.levers == ("bf16-mixed",)
    assert found.certificate.verdict == "holds"
    assert found.proof.time_ratio.high < 1
    (note,) = [each for each in found.report.notes if "DistributedDataParallel" in each]
    assert "\n" not in note
    assert state_of(model)[2] == before[2]
    start_s = time.monotonic()
    model(BATCH).backward()
    assert time.monotonic() - start_s < 60e-3, "the caller's own call has the lever"
    assert all(each.grad.dtype == torch.float32 for each in model.parameters())
    with pytest.raises(pw.PeakwardError, match="for a patch, got one inside"):
        found.patch()
    assert found.undo() == ()
    assert state_of(model) == before
    of_two()
    with pytest.raises(pw.PeakwardError, match="of one process, got one of 2"):
        pw.apply(found.report, model, optimizer, batch=BATCH)
    applied = pw.apply(found.report, model, optimizer)
    assert applied.levers == ("bf16-mixed",)
    assert applied.undo() == ()
    assert state_of(model) == before


LEVERS = [
    {"compile": "default"},
    {"compile": "default", "compile_scope": "model"},
    {"compile": "default", "checkpointing": "every-block"},
    {"attention": "sdpa"},
    {"optimizer": "adamw-fused"},
]
VIEWS = {"gradient_as_bucket_view": True}


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        *((each, {}) for each in LEVERS),
        (LEVERS[0], VIEWS),
        *rows_in_full((each, VIEWS) for each in LEVERS[1:]),
    ],
)
def test_each_kind_of_lever_computes_the_same_beneath_it(settings, flags, tiny_gpt, monkeypatch):
    """Through Dynamo without Inductor, which would take a minute."""
    compiled = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: compiled(self, backend="aot_eager"))
    model = tiny_gpt.naive().eval()
    model(IDS).square().mean().backward()
    expected = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    wrapper = DistributedDataParallel(model, **flags)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    before = state_of(wrapper)
    live = Live(model=model, optimizer=optimizer, wrapper=wrapper)
    applied = Applied(live, with_settings(AS_WRITTEN, settings))
    for _ in range(2):
        optimizer.zero_grad()
        wrapper(IDS).square().mean().backward()
        optimizer.step()
    for each, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(each.grad, wanted, rtol=1e-3, atol=1e-5)
    assert applied.undo() == ()
    assert state_of(wrapper) == before


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"precision": "bf16"}, "casts parameters, for whose type"),
        ({"precision": "fp8"}, "chooses layers by their times"),
        ({"cuda_graphs": True}, "captures the whole step"),
    ],
)
def test_what_changes_parameters_or_the_whole_step_is_refused(settings, said):
    wrapper = DistributedDataParallel(Waits())
    live = Live(model=wrapper.module, wrapper=wrapper)
    with pytest.raises(pw.PeakwardError, match=said) as caught:
        Applied(live, with_settings(AS_WRITTEN, settings))
    assert "\n" not in str(caught.value)


def test_a_named_lever_that_it_does_not_allow_is_refused(calibrated):
    with pytest.raises(pw.PeakwardError, match="bf16 casts parameters") as caught:
        pw.optimize(DistributedDataParallel(Waits()), BATCH, levers=("bf16",))
    assert "\n" not in str(caught.value)


def test_a_search_with_other_processes_is_refused(of_two):
    wrapper = DistributedDataParallel(Waits())
    of_two()
    searches = (
        lambda: pw.optimize(wrapper, BATCH),
        lambda: pw.run(wrapper, BATCH),
        lambda: pw.investigate(lambda: wrapper(BATCH).backward(), model=wrapper),
    )
    for search in searches:
        with pytest.raises(pw.PeakwardError, match="of one process, got one of 2") as caught:
            search()
        assert "\n" not in str(caught.value)


@pytest.mark.full
@pytest.mark.parametrize("scope", ["model", "block"])
def test_what_is_compiled_beneath_it_is_the_start_and_is_compiled_again(
    scope, calibrated, monkeypatch
):
    compiled = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: compiled(self, backend="eager"))
    module = Waits()
    for each in [module] if scope == "model" else module.blocks:
        each.compile()
    model = DistributedDataParallel(module)
    before = state_of(model)
    found = pw.optimize(model, BATCH, levers=("bf16-mixed",), budget="10m")
    base = found.report.trials[0].base.configuration
    assert (base.compile, base.compile_scope) == ("default", scope)
    assert found.levers == ("bf16-mixed",)
    assert any("came compiled" in each for each in found.report.notes)
    model(BATCH).backward()
    found.undo()
    after = state_of(model)
    assert after[0] == before[0]
    assert all(a is b for a, b in zip(after[1], before[1], strict=True))
    assert after[2:] == before[2:]


def test_what_torch_compile_wrapped_is_refused_beneath_it_and_predicted(tiny_gpt, calibrated):
    model = DistributedDataParallel(torch.compile(tiny_gpt.build()))
    with pytest.raises(pw.PeakwardError, match="compiled in place inside Distributed"):
        pw.optimize(model, IDS, loss=tiny_gpt.scored)
    settings = {"inputs": (IDS,), "loss": tiny_gpt.scored, "pass_": "train_step"}
    found = pw.predict(model, "h100-sxm-80", **settings)
    plain = pw.predict(tiny_gpt.build(), "h100-sxm-80", **settings)
    alone = pw.predict(torch.compile(tiny_gpt.build()), "h100-sxm-80", **settings)
    assert (found.step_s, found.needed_bytes) == (alone.step_s, alone.needed_bytes)
    assert plain.step_s != alone.step_s
    assert "communication" in {each.figure for each in found.absent}
    assert "communication" not in {each.figure for each in alone.absent}


@pytest.mark.full
def test_a_step_that_trains_it_is_investigated(tiny_gpt, calibrated, monkeypatch):
    names = ("bf16", "compile", "fused-optimizer")
    monkeypatch.setattr(live_steps, "LEVERS", tuple(map(lever, names)))
    monkeypatch.setattr("peakward.lab.measure.probe.has_compiler", lambda: False)
    model = DistributedDataParallel(tiny_gpt.build())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before = state_of(model), {name: x.clone() for name, x in model.state_dict().items()}

    def step():
        optimizer.zero_grad()
        loss = tiny_gpt.scored(model(IDS))
        loss.backward()
        optimizer.step()
        return loss

    study = pw.investigate(step, model=model, optimizer=optimizer, budget_s=300.0)
    told = {each.lever: each.reason for each in study.trials if each.stage == "refused"}
    assert "casts parameters, for whose type" in told["bf16"]
    assert "fused-optimizer" in {each.lever for each in study.trials if each.stage != "refused"}
    assert any("inside DistributedDataParallel" in each for each in study.notes)
    assert state_of(model) == before[0]
    assert all(torch.equal(before[1][name], x) for name, x in model.state_dict().items())


def test_a_sharded_module_is_refused_in_one_line(tiny_gpt, calibrated):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(tiny_gpt.build(), mesh=init_device_mesh("cpu", (1,)))
    refused = (
        lambda: pw.optimize(model, IDS, loss=tiny_gpt.scored),
        lambda: pw.run(model, IDS, loss=tiny_gpt.scored),
        lambda: pw.investigate(lambda: model(IDS), model=model),
        lambda: pw.predict(model, "h100-sxm-80", inputs=(IDS,)),
    )
    for each in refused:
        with pytest.raises(
            pw.PeakwardError, match="give the module before it is sharded"
        ) as caught:
            each()
        assert "\n" not in str(caught.value)
