"""Cases of several ranks are measured like others: what a job of them found, or a status with its reason."""

import json
import math

import msgspec
import pytest

from peakward.api import session
from peakward.lab.models import module_source
from peakward.models.presets import model
from peakward.prediction.flops import step_flops
from peakward.records.case import (
    AS_WRITTEN,
    CollectivesCase,
    Configuration,
    LayoutCase,
    ModuleCase,
    Workload,
)
from peakward.records.case_key import case_key
from peakward.records.layout import Layout
from peakward.records.layouts import STRATEGIES
from peakward.records.measurement import Protocol
from peakward.report.cases import label

SHAPE = msgspec.structs.replace(
    model("tiny"), name="test", n_layers=2, d_model=32, d_ff=64, head_dim=8, vocab_size=64
)


def of_layout(layout):
    return LayoutCase(
        model=SHAPE,
        workload=Workload(batch_size=2, seq_len=8),
        configuration=Configuration(attention="sdpa"),
        layout=layout,
        device="cpu",
    )


@pytest.fixture(scope="module")
def measured():
    with session.workers() as workers:
        yield lambda case: workers.measure(case, Protocol(warmup_steps=1, min_steps=3))


@pytest.mark.full  # Another is measured alike below; test_traffic counts bytes.
def test_a_layout_has_steps_and_what_each_rank_holds_and_sends(measured):
    found = measured(of_layout(Layout(dp=2, data="zero1")))
    assert found.status == "ok", found.reason
    assert found.summary.n == 3 and found.loss > 0 and found.memory is None
    n_bytes = 4 * found.n_parameters
    ranks = found.ranks.ranks
    assert found.ranks.backend == "gloo" and len(ranks) == 2
    for each in ranks:
        assert each.held_bytes["parameters"] == n_bytes and each.peak_bytes is None
        sent = {one.collective: one.n_bytes for one in each.sent}
        assert sent == {"all-reduce": n_bytes, "broadcast": n_bytes}
    state = sum(each.held_bytes["optimizer_state"] for each in ranks)
    assert 2 * n_bytes <= state < 2.1 * n_bytes


GPT = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 16,
    "vocab_size": 64,
}


@pytest.mark.full
def test_a_user_s_module_is_shared_too(measured, tmp_path):
    """transformers' GPT-2 with its dropout and its tied head, sharded."""
    (tmp_path / "config.json").write_text(json.dumps(GPT))
    source = f"hf:{tmp_path}"
    case = LayoutCase(
        source=source,
        fingerprint=module_source.fingerprint(source),
        workload=Workload(batch_size=2, seq_len=8),
        configuration=AS_WRITTEN.with_settings({"optimizer": "adamw-fused"}),
        layout=Layout(dp=2, data="fsdp"),
        device="cpu",
    )
    assert isinstance(case.of_one_rank, ModuleCase) and case.name == source
    assert source in label(case) and step_flops(case) is None
    found = measured(case)
    assert found.status == "ok", found.reason
    assert found.loss == pytest.approx(math.log(64), rel=0.1)
    assert found.n_parameters == 64 * 32 + 16 * 32 + 2 * (12 * 32**2 + 13 * 32) + 2 * 32
    held = [each.held_bytes["parameters"] for each in found.ranks.ranks]
    assert sum(held) == 4 * found.n_parameters and max(held) < 2.2 * found.n_parameters


UNUSED = """
import torch
from torch import nn

class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.used(x).square().mean()

def build():
    return Half(), (torch.ones(2, 8),)
"""


def test_parameters_that_a_step_does_not_use_are_looked_for(measured, tmp_path, monkeypatch):
    """Those of a user's module."""
    (tmp_path / "half_used.py").write_text(UNUSED)
    monkeypatch.chdir(tmp_path)
    case = LayoutCase(
        source="py:half_used:build",
        fingerprint=module_source.fingerprint("py:half_used:build"),
        workload=Workload(batch_size=2, seq_len=8),
        configuration=AS_WRITTEN,
        layout=Layout(dp=2),
        device="cpu",
    )
    found = measured(case)
    assert found.status == "ok", found.reason
    assert found.summary.n == 3 and found.loss > 0 and found.memory is None
    assert found.ranks.backend == "gloo"
    ranks = found.ranks.ranks
    assert [each.n_unused for each in ranks] == [2, 2]
    for each in ranks:
        assert each.held_bytes["parameters"] == 4 * found.n_parameters and each.peak_bytes is None
        assert any(one.collective == "all-reduce" for one in each.sent)


@pytest.mark.parametrize("layout", [Layout(cp=2), Layout(dp=2, ep=2)], ids=["cp", "ep"])
def test_context_and_expert_parallelism_are_planned_and_not_run(measured, layout):
    found = measured(of_layout(layout))
    assert found.status == "invalid" and "it is planned and not run" in found.reason


@pytest.mark.full
@pytest.mark.parametrize(
    "layout",
    [*(Layout(dp=2, data=each) for each in STRATEGIES), Layout(pp=2, n_micro_batches=4)],
    ids=lambda layout: layout.name,
)
def test_the_engine_runs_every_other_layout_of_experts_that_is_planned(measured, layout):
    shape = msgspec.structs.replace(SHAPE, n_experts=4, n_active_experts=2)
    found = measured(msgspec.structs.replace(of_layout(layout), model=shape))
    assert found.status == "ok", found.reason
    assert found.loss == pytest.approx(math.log(64), rel=0.1)


def test_an_axis_of_one_rank_changes_no_key():
    """The key of a release without context parallelism."""
    assert case_key(of_layout(Layout(dp=2))) == "061b249d1ddc4281"
    assert case_key(of_layout(Layout(cp=2))) != case_key(of_layout(Layout()))


@pytest.mark.full
def test_what_no_layout_can_be_is_a_status(measured):
    found = measured(of_layout(Layout(tp=2, n_micro_batches=3)))
    assert found.status == "invalid" and "3 micro-batches" in found.reason


@pytest.mark.full
def test_collectives_have_times_and_a_fit(measured):
    found = measured(CollectivesCase(n_ranks=2, sizes_bytes=(10**4, 10**5), device="cpu"))
    assert found.status == "ok", found.reason
    assert len(found.collectives.times) == 10 and len(found.collectives.fits) == 5
    largest = max(
        (each for each in found.collectives.times if each.collective == "all-reduce"),
        key=lambda each: each.n_bytes,
    )
    assert found.summary.median_s.estimate == pytest.approx(largest.time_s)


def test_more_ranks_than_gpus_are_a_status(monkeypatch):
    monkeypatch.setattr("peakward.lab.measure.nvml.visible_names", lambda: ("NVIDIA H100",))
    from peakward.lab.parallel.measured import measure

    case = CollectivesCase(n_ranks=2, sizes_bytes=(10**4,), device="cuda")
    found = measure(case, Protocol(), 10.0)
    assert (found.status, found.ended_by) == ("invalid", "case")
    assert "expected a GPU for each of 2 ranks, got 1" in found.reason


def test_ctrl_c_ends_a_job():
    from peakward.lab.parallel.measured import measure

    found = measure(of_layout(Layout(dp=2)), Protocol(), 60.0, lambda: True)
    assert (found.status, found.ended_by) == ("crashed", "user")


def test_layouts_are_told_apart():
    layouts = (
        Layout(dp=4),
        Layout(dp=4, bucket_mb=25),
        Layout(dp=2, data="fsdp", tp=2),
        Layout(pp=4, n_micro_batches=8),
        Layout(dp=4, data="fsdp", wrap="whole"),
        Layout(dp=4, data="fsdp", blocks_together=4),
        Layout(data="fsdp"),
        Layout(),
    )
    assert len({case_key(of_layout(each)) for each in layouts}) == len(layouts)
    labels = [label(of_layout(each)) for each in layouts]
    assert len(set(labels)) == len(layouts)
    said = (
        "test 2 × 8 train_step, ddp 4, buckets of 25 MB, fp32, sdpa attention, eager, adamw-foreach"
    )
    assert labels[1] == said
