"""Layouts timed on ranks: each by itself, in turns, and collectives by size."""

import msgspec
import pytest

from peakward.lab.parallel.measured import calibrate
from peakward.models.presets import model
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.layout import Layout, expect_layout
from peakward.records.parallel import Arm, ArmRun, ArmsRequest
from peakward.stats.stragglers import stragglers
from unit.lab.parallel.job import run_ranks

SHAPE = msgspec.structs.replace(
    model("tiny"), name="test", n_layers=2, d_model=32, d_ff=64, head_dim=8, vocab_size=64
)
CASE = ModelCase(
    model=SHAPE,
    workload=Workload(batch_size=2, seq_len=8, pass_="train_step"),
    configuration=Configuration(attention="sdpa", optimizer="adamw-fused"),
    device="cpu",
)


@pytest.fixture(scope="module")
def runs():
    request = ArmsRequest(
        case=CASE,
        arms=(
            Arm(name="plain", layout=Layout(), compiled=False),
            Arm(name="ddp", layout=Layout(dp=2), compiled=False),
            Arm(name="graph", layout=Layout(dp=2, data="zero2", captured=True), compiled=False),
            Arm(name="impossible", layout=Layout(tp=2, n_micro_batches=3), compiled=False),
        ),
        turns=(("plain", "ddp"), ("plain", "impossible")),
        n_warmup=1,
        n_solo_steps=2,
        n_steps=2,
        n_rounds=2,
    )
    found = run_ranks("peakward.lab.parallel.arms:measure", msgspec.to_builtins(request), n_ranks=2)
    return [msgspec.convert(each["runs"], list[ArmRun]) for each in found]


def test_an_arm_of_one_rank_runs_on_the_first_alone(runs):
    first, second = ({each.arm for each in rank if each.steps_s} for rank in runs)
    assert first == {"plain", "ddp"} and second == {"ddp"}


def test_arms_take_turns_in_both_orders(runs):
    order = [each.arm for each in runs[0] if each.turns == ("plain", "ddp")]
    assert order == ["plain", "ddp", "ddp", "plain"]
    assert all(len(each.steps_s) == 2 and min(each.steps_s) > 0 for each in runs[0] if each.turns)


def test_an_arm_that_fails_says_why_and_is_left_out_of_turns(runs):
    for rank in runs:
        (failed,) = [each for each in rank if each.arm == "impossible"]
        assert "3 micro-batches" in failed.failed


def test_a_step_as_one_graph_is_refused_without_gpus(runs):
    for rank in runs:
        (failed,) = [each for each in rank if each.arm == "graph"]
        assert failed.failed.startswith("expected GPUs for a step as one CUDA graph, got a CPU")


SLEPT_S = 0.2
"""Many times a step of these ranks, also on a busy machine."""


@pytest.mark.full
@pytest.mark.parametrize("n", [2, 4])
def test_a_rank_that_sleeps_in_its_forward_pass_is_late(n):
    layouts = [
        Layout(dp=n),
        Layout(dp=n, data="overlapped"),
        Layout(dp=n, data="fsdp"),
        Layout(tp=n),
    ]
    request = ArmsRequest(
        case=CASE,
        arms=tuple(Arm(name=each.name, layout=each, compiled=False) for each in layouts),
        n_warmup=1,
        n_solo_steps=2,
        accounts=True,
    )
    given = {"rank": n - 1, "seconds": SLEPT_S, "request": msgspec.to_builtins(request)}
    by_rank = [
        msgspec.convert(each["runs"], list[ArmRun])
        for each in run_ranks("lost:sleepy", given, n_ranks=n)
    ]
    jobs = [
        {rank: each.use.own_s for rank, each in enumerate(own)}
        for own in zip(*by_rank, strict=True)
    ]
    for job in jobs:
        assert all(each >= SLEPT_S for each in job[n - 1])
    assert [each.rank for each in stragglers(jobs)] == [n - 1]


def test_collectives_of_two_ranks_have_times_and_a_fit():
    found = calibrate(2, "cpu", sizes_mb=(0.01, 0.1))
    assert {each.collective for each in found.times} == {
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "all-to-all",
        "point-to-point",
    }
    assert len(found.times) == 10 and len(found.fits) == 5
    assert min(each.time_s for each in found.times) > 0 and found.backend == "gloo"


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (Layout(dp=4), "expected a layout of 8 ranks, got ddp 4, which takes 4"),
        (Layout(dp=4, tp=2), "expected fsdp, zero2 or overlapped beside tensor"),
        (Layout(dp=4, pp=2, data="flat", n_micro_batches=2), "expected ddp, zero1, zero2 or fsdp"),
        (Layout(dp=4, pp=2), "expected at least 2 micro-batches"),
        (Layout(dp=8, stages_per_rank=2), "expected one stage a rank with the schedule 1f1b"),
        (
            Layout(dp=8, captured=True),
            "expected overlapped, zero2, fsdp alone for a step as one CUDA graph",
        ),
        (Layout(dp=4, tp=2, data="fsdp", captured=True), "got fsdp 4 × tp 2: leave the graph"),
        (Layout(dp=0), "expected sizes of at least 1"),
    ],
)
def test_what_no_layout_can_be_is_refused(layout, said):
    with pytest.raises(PeakwardError, match=said):
        expect_layout(layout, 8)
