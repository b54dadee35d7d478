"""Whole steps: that sums agree, and what must hold of every case."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.hardware.devices import device as catalogued
from peakward.models.presets import model
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.time.device_model import device_model
from peakward.prediction.time.errors_seen import FACTORS
from peakward.prediction.time.operator_time import cost
from peakward.prediction.time.setting import of_case
from peakward.prediction.time.step import step_time
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape

from .round_device import US, case, device

H200 = device_model(None, catalogued("h200-141"))
PASSES = ("forward", "forward_backward", "train_step")
MICRO = ModelShape(
    name="micro",
    vocab_size=64,
    n_layers=1,
    d_model=16,
    d_ff=32,
    n_heads=2,
    n_kv_heads=2,
    head_dim=8,
    max_seq_len=16,
)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize(
    "settings_",
    [{}, {"precision": "bf16-mixed", "attention": "sdpa", "checkpointing": "every-block"}],
)
def test_operators_add_up_to_phases_and_phases_to_the_step(pass_, settings_):
    made = case("gpt2", pass_=pass_, **settings_)
    found = step_time(made, H200)
    for phase in found.phases:
        mine = [each.device_s for each in found.operators if each.phase == phase.phase]
        assert sum(mine) == pytest.approx(phase.device_s)
    assert found.device_s == pytest.approx(sum(each.device_s for each in found.operators))
    assert found.host_s == pytest.approx(sum(each.host_s for each in found.phases))
    n_phases = 1 + PASSES.index(pass_)
    assert [each.phase for each in found.phases] == ["forward", "backward", "optimizer"][:n_phases]


def test_operators_are_the_graphs():
    made = case("small", precision="bf16-mixed")
    found = step_time(made, H200)
    graph = op_graph(made)
    assert sum(each.n_calls for each in found.operators) == sum(e.count for e in graph.operators)
    assert sum(each.flops for each in found.operators) == sum(
        each.count * each.flops for each in graph.operators
    )
    times = [each.device_s for each in found.operators]
    assert times == sorted(times, reverse=True)


def test_an_operator_of_several_sizes_is_bound_as_the_longest_is():
    """Rotation subtracts halves of small heads, which costs a launch; the mask 4096² positions."""
    made = case(MICRO, batch_size=1, seq_len=4096, pass_="forward")
    found = next(
        each
        for each in step_time(made, H200).operators
        if (each.name, each.module) == ("aten.sub", "blocks.*.attention")
    )
    bounds = [
        cost(each, of_case(made), H200).bound
        for each in op_graph(made).operators
        if (each.name, each.module) == (found.name, found.module)
    ]
    assert bounds == ["launch", "memory"]
    assert found.bound == "memory"


def test_the_host_is_waited_for_where_it_takes_longer():
    slow_host, fast_host = (
        step_time(case(MICRO, seq_len=16), device(call_s=call_s)) for call_s in (1e-3, 1e-9)
    )
    assert (slow_host.bound, fast_host.bound) == ("host", "device")
    assert slow_host.step_s.estimate == pytest.approx(slow_host.host_s, rel=0.01)
    assert fast_host.step_s.estimate == pytest.approx(fast_host.device_s, rel=0.01)


def test_the_interval_is_that_of_the_source_and_the_bound():
    found = step_time(case("2.7B", seq_len=1024), H200)
    low, high = FACTORS["datasheet", "device"]
    assert (found.source, found.bound) == ("datasheet", "device")
    assert found.step_s.low == pytest.approx(low * found.step_s.estimate)
    assert found.step_s.high == pytest.approx(high * found.step_s.estimate)


def test_the_head_by_hand():
    """8 × 16 · 16 × 64 in one tile: 2 · 128 · 128 · 16 FLOPs at 1 TFLOP/s, less than its start."""
    found = step_time(case(MICRO, batch_size=1, seq_len=8, pass_="forward"), device())
    head = next(each for each in found.operators if each.module == "readout.head")
    assert (head.name, head.n_calls, head.flops) == ("aten.mm", 1, 2 * 8 * 16 * 64)
    assert head.device_s == pytest.approx((0.524288 + 3) * US)
    assert head.bound == "launch"


def test_a_cpu_is_refused():
    on_cpu = msgspec.structs.replace(case(MICRO, seq_len=8), device="cpu")
    with pytest.raises(PeakwardError, match="expected a case on a GPU"):
        step_time(on_cpu, H200)


def test_a_type_whose_rate_is_unknown_is_refused():
    with pytest.raises(
        PeakwardError, match=r"whose rate of aten\.mm in bfloat16 is known, got round"
    ):
        step_time(case("small", precision="bf16"), device(products={}))


CASES = st.builds(
    case,
    st.sampled_from(["small", "gpt2", "llama-3.2-1b"]),
    batch_size=st.integers(1, 24),
    seq_len=st.sampled_from([64, 100, 129, 512]),
    pass_=st.sampled_from(PASSES),
    accumulate=st.sampled_from([1, 2]),
    precision=st.sampled_from(["fp32", "bf16", "bf16-mixed", "fp16-mixed"]),
    attention=st.sampled_from(["naive", "sdpa-flash", "sdpa-math"]),
    checkpointing=st.sampled_from(["none", "every-block", "selective"]),
)


def grown(made, **changes):
    work = msgspec.structs.replace(made.workload, **changes)
    return msgspec.structs.replace(made, workload=work)


@settings(max_examples=50)
@given(CASES)
def test_a_sequence_more_never_takes_less(made):
    if made.configuration.precision == "fp32" and made.configuration.attention == "sdpa-flash":
        return  # torch has no such kernel.
    before = step_time(made, H200)
    after = step_time(grown(made, batch_size=made.workload.batch_size + 1), H200)
    assert after.device_s >= before.device_s * (1 - 1e-12)
    assert after.host_s >= before.host_s  # Of a single sequence some layouts need no copy.
    assert after.step_s.estimate >= before.step_s.estimate * (1 - 1e-12)


@settings(max_examples=50)
@given(CASES)
def test_a_micro_batch_more_takes_more_of_both(made):
    if made.workload.pass_ == "forward" or (
        made.configuration.precision == "fp32" and made.configuration.attention == "sdpa-flash"
    ):
        return
    before = step_time(made, H200)
    after = step_time(grown(made, accumulate=made.workload.accumulate + 1), H200)
    assert after.device_s > before.device_s
    assert after.host_s > before.host_s


def mixture(**options):
    shape = msgspec.structs.replace(model("small"), n_experts=8, n_active_experts=2)
    return case(shape, **options)


def test_a_loop_over_experts_waits_for_where_their_rows_end():
    """Twice a block, and as often where blocks are run again."""
    counted = {}
    for checkpointing in ("none", "every-block"):
        found = step_time(mixture(checkpointing=checkpointing), device())
        counted[checkpointing] = [each.n_waits for each in found.phases]
    assert counted == {"none": [24, 0, 0], "every-block": [24, 24, 0]}
    found = step_time(mixture(precision="bf16"), device())
    assert [each.n_waits for each in found.phases] == [0, 0, 0]


def test_more_active_experts_take_longer_and_more_idle_ones_only_where_weights_count():
    def forward_s(n_experts, n_active):
        shape = msgspec.structs.replace(
            model("small"), n_experts=n_experts, n_active_experts=n_active
        )
        made = case(shape, batch_size=16, seq_len=1024, pass_="forward", precision="bf16")
        return step_time(made, device()).device_s

    assert forward_s(8, 1) < forward_s(8, 2) < forward_s(8, 4)
    assert forward_s(8, 2) == pytest.approx(forward_s(4, 2), rel=0.02)
