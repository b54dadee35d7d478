"""Whole steps: that sums agree, and what must hold of every case."""

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.hardware.devices import device as catalogued
from peakward.kernels.ops.attention.api import implementation
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.module_capture import capture_module
from peakward.models.presets import model
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.time.device_model import AttentionModel, device_model
from peakward.prediction.time.dispatch import BEFORE_FOREACH
from peakward.prediction.time.errors_seen import DEVICE, HOST
from peakward.prediction.time.operator_time import cost
from peakward.prediction.time.setting import of_case
from peakward.prediction.time.step import (
    BETWEEN_S,
    DEPTH,
    Stretch,
    module_time,
    queued_s,
    step_time,
)
from peakward.records.case import Configuration, ModelCase, StepCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape
from tiers import in_full

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
    low, high = DEVICE["datasheet"]
    assert (found.source, found.bound) == ("datasheet", "device")
    assert found.step_s.low == pytest.approx(low * found.step_s.estimate)
    assert found.step_s.high == pytest.approx(high * found.step_s.estimate)


def test_the_head_by_hand():
    """8 × 16 · 16 × 64 in one tile: 2 · 128 · 128 · 16 FLOPs at 1 TFLOP/s, less than its start, and what lies
    between its 1.4 kernels and the next."""
    found = step_time(case(MICRO, batch_size=1, seq_len=8, pass_="forward"), device())
    head = next(each for each in found.operators if each.module == "readout.head")
    assert (head.name, head.n_calls, head.flops) == ("aten.mm", 1, 2 * 8 * 16 * 64)
    assert head.device_s == pytest.approx((0.524288 + 3 + 1.4 * 0.2) * US)
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


# A captured module's time, against the same module in closed form.

MIXTURE = msgspec.structs.replace(model("small"), n_experts=8, n_active_experts=2)
SHAPES = {
    name: msgspec.structs.replace(shape, n_layers=4)
    for name, shape in (("small", model("small")), ("gpt2", model("gpt2")), ("mixture", MIXTURE))
}


@pytest.mark.parametrize("name", ["small", "mixture", *in_full(["gpt2"])])
@pytest.mark.parametrize("attention", ["naive", *in_full(["sdpa"])])
@pytest.mark.parametrize("pass_", ["train_step", *in_full(["forward"])])
def test_the_reference_decoder_as_anyone_s_module_takes_as_long_as_in_closed_form(
    name, attention, pass_
):
    """On a device that never waits for its host, to 1.5%: layouts are seen there and derived here."""
    shape = SHAPES[name]
    with torch.device("meta"):
        module = Decoder(shape, implementation(attention)).bfloat16()
    ids = torch.zeros(4, 256, dtype=torch.long)
    inputs = (ids,) if pass_ == "forward" else (ids, ids)
    on = device(call_s=0.0)
    found = module_time(capture_module(module, inputs, pass_=pass_), on)
    case = ModelCase(
        model=shape,
        workload=Workload(batch_size=4, seq_len=256, pass_=pass_),
        configuration=Configuration(precision="bf16", attention=attention),
        device="cuda",
    )
    closed = step_time(case, on)
    assert found.step_s.estimate == pytest.approx(closed.step_s.estimate, rel=0.015)
    for mine, other in zip(found.phases, closed.phases, strict=True):
        assert mine.phase == other.phase
        assert mine.device_s == pytest.approx(other.device_s, rel=0.02)


@pytest.mark.parametrize("attention", ["sdpa", *in_full(["naive"])])
@pytest.mark.parametrize("pass_", ["train_step", *in_full(["forward"])])
def test_compiled_as_anyone_s_module_it_takes_as_long_as_in_closed_form(attention, pass_):
    """To 2% of each phase: its kernels are told by rules there, and were read off Inductor's code here."""
    with torch.device("meta"):
        module = Decoder(SHAPES["small"], implementation(attention)).bfloat16()
    ids = torch.zeros(4, 256, dtype=torch.long)
    inputs = (ids,) if pass_ == "forward" else (ids, ids)
    parts, on = [*module.blocks, module.readout], device(call_s=0.0)
    found = module_time(capture_module(module, inputs, pass_=pass_, compiled=parts), on)
    case = ModelCase(
        model=SHAPES["small"],
        workload=Workload(batch_size=4, seq_len=256, pass_=pass_),
        configuration=Configuration(precision="bf16", attention=attention, compile="default"),
        device="cuda",
    )
    closed = step_time(case, on)
    for mine, other in zip(found.phases, closed.phases, strict=True):
        assert mine.device_s == pytest.approx(other.device_s, rel=0.02)
        assert mine.n_launches == pytest.approx(other.n_launches, rel=0.07)
    mine, other = (each.step_s.high / each.step_s.low for each in (found, closed))
    assert mine > other, "by the kernels that no stored result has timed"


def test_it_stands_under_its_own_name():
    capture = capture_module(torch.nn.Linear(8, 8), (torch.randn(4, 8),), tokens=4)
    found = module_time(capture, device())
    assert found.case == StepCase(
        name="Linear forward", fingerprint=capture.fingerprint, device="cuda", tokens_per_step=4.0
    )


def test_a_single_query_is_bound_by_reading_keys_and_values():
    """32 heads of 8192 positions of 128 in bf16: 64 MiB of keys, which are the values too, at 1 TB/s."""

    class Decoding(torch.nn.Module):
        def forward(self, q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    q = torch.empty(1, 32, 1, 128, dtype=torch.bfloat16, device="meta")
    k = torch.empty(1, 32, 8192, 128, dtype=torch.bfloat16, device="meta")
    rates = {("bf16", "forward"): AttentionModel(1e-15, 0.0)}
    on = device(call_s=0.0, attention=rates)
    found = module_time(capture_module(Decoding(), (q, k, k)), on).operators[0]
    assert found.bound == "memory"
    assert found.device_s == pytest.approx(64 * 2**20 / 1e12, abs=3 * on.traffic.launch_s)


def test_attention_without_a_mask_computes_twice_as_much():
    class Attention(torch.nn.Module):
        def __init__(self, causal):
            super().__init__()
            self.causal = causal

        def forward(self, q):
            attend = torch.nn.functional.scaled_dot_product_attention
            return attend(q, q, q, is_causal=self.causal)

    q = torch.randn(2, 64, 512, 64)
    on = device(call_s=0.0)
    masked, whole = (
        module_time(capture_module(Attention(causal), (q,)), on).operators[0]
        for causal in (True, False)
    )
    launch_s = on.traffic.launch_s + 2 * BETWEEN_S
    assert whole.device_s - launch_s == pytest.approx(2 * (masked.device_s - launch_s))


def test_a_read_of_a_value_makes_the_host_wait():
    class Longest(torch.nn.Module):
        def forward(self, x, lengths):
            return x[:, : int(lengths.max())] * 2

    x = torch.empty(2, 16, 8)
    found = module_time(capture_module(Longest(), (x, torch.tensor([3, 5]))), device())
    assert [each.n_waits for each in found.phases] == [1]


def test_a_number_that_is_copied_to_the_device_makes_the_host_wait():
    """As where a mask is made: the host waits for the head of the step before, and the device then for the
    next launch. A number that is made on the device costs the host as much and holds nothing up."""

    class Masked(torch.nn.Module):
        def __init__(self, make):
            super().__init__()
            self.make, self.head = make, torch.nn.Linear(64, 1 << 16)

        def forward(self, x):
            return self.head(x * self.make(x.device))

    waiting, free = (
        module_time(capture_module(Masked(make), (torch.empty(4096, 64),)), device())
        for make in (lambda on: torch.tensor(1.0, device=on), lambda on: torch.ones((), device=on))
    )
    (held_up,), (phase,) = waiting.phases, free.phases
    assert (held_up.n_waits, phase.n_waits) == (1, 0)
    assert held_up.host_s == pytest.approx(phase.host_s)
    between_s = phase.host_s / phase.n_launches
    assert waiting.step_s.estimate - free.step_s.estimate == pytest.approx(between_s, rel=0.01)


@pytest.mark.parametrize("compile_", ["none", "default"])
def test_a_slower_thread_of_the_backward_pass_costs_what_it_issues_and_nothing_else(compile_):
    """Of a step that the host bounds."""
    equal, slower = device(call_s=1e-3), device(call_s=1e-3, backward_call_s=2e-3)
    given = {"seq_len": 16, "attention": "sdpa", "compile": compile_}
    trained = case(**given, precision="bf16-mixed")
    before, after = (step_time(trained, on) for on in (equal, slower))
    more = [new.host_s / old.host_s for old, new in zip(before.phases, after.phases, strict=True)]
    assert more == [1.0, 2.0, 1.0]
    added_s = before.phases[1].host_s
    assert after.step_s.estimate - before.step_s.estimate == pytest.approx(added_s, rel=0.01)
    assert (before.host_backward_call_s, after.host_backward_call_s) == (None, 2e-3)
    evaluated = case(**given, pass_="forward", precision="bf16-mixed")
    assert step_time(evaluated, equal).phases == step_time(evaluated, slower).phases
    assert step_time(evaluated, equal).step_s == step_time(evaluated, slower).step_s


def test_a_module_s_backward_pass_is_issued_by_its_thread_too():
    capture = capture_module(
        torch.nn.Linear(8, 8), (torch.randn(4, 8),), pass_="train_step", loss=lambda y: y.sum()
    )
    before, after = (
        module_time(capture, device(call_s=1e-3, backward_call_s=each)) for each in (None, 2e-3)
    )
    added_s = before.phases[1].host_s
    assert after.host_s - before.host_s == pytest.approx(added_s)
    assert after.step_s.estimate - before.step_s.estimate == pytest.approx(added_s, rel=0.01)


@pytest.mark.parametrize("call_us", [100.0, 0.001])
def test_on_another_host_a_step_may_take_as_long_as_hosts_differ(call_us):
    """Where the host bounds it; the device's time is as sure as ever."""
    capture = capture_module(torch.nn.Linear(8, 8), (torch.randn(4, 8),))
    own, other = (
        module_time(capture, device(call_s=call_us * 1e-6, host_is_known=known)).step_s
        for known in (True, False)
    )
    assert own.estimate == other.estimate
    if call_us < 1:
        assert own == other
    else:
        low, high = HOST[False]
        assert other.high == pytest.approx(high * own.estimate, rel=0.05)
        assert other.low == pytest.approx(low * own.estimate, rel=0.05)


# Who waits for whom, by hand.


def test_a_slow_device_is_waited_for():
    assert queued_s([Stretch(10, 0.1, 1.0)]) == pytest.approx(1.0)


def test_a_slow_host_is_waited_for():
    assert queued_s([Stretch(10, 1.0, 0.1)]) == pytest.approx(1.0)


def test_one_may_be_slow_in_one_phase_and_the_other_in_another():
    """While the device is busy with b the host is already in the next step's a."""
    a, b = Stretch(100, 1.0, 0.2), Stretch(10, 0.1, 0.9)
    assert queued_s([a, b]) == pytest.approx(1.1, rel=0.01)


def test_the_host_runs_no_further_ahead_than_the_queue_is_deep():
    """a takes the host 3 ms a launch and the device next to nothing, b the device 6 s.

    When b is issued the device is idle. For 6 s it is busy with b, and the host issues DEPTH
    launches of the next a, 3.06 s, then waits: of 9 s it has done so many less in the end.
    """
    a, b = Stretch(3000, 9.0, 0.003), Stretch(1, 0.0, 6.0)
    assert DEPTH == 1021
    assert queued_s([a, b]) == pytest.approx(9.0 + 6.0 - 3.063, rel=0.002)


def test_within_the_queue_only_the_longer_counts():
    a, b = Stretch(900, 9.0, 0.003), Stretch(1, 0.0, 6.0)
    assert queued_s([a, b]) == pytest.approx(9.0, rel=0.002)


def test_a_host_that_waits_for_a_value_lets_the_device_wait_for_it():
    """Without waits the host's 1 s lies behind the device's 3 s. After each of 3 waits the device
    has nothing to do until the host has issued a launch."""
    free, waiting = Stretch(400, 1.0, 3.0), Stretch(400, 1.0, 3.0, n_waits=3)
    assert queued_s([free]) == pytest.approx(3.0)
    assert queued_s([waiting]) == pytest.approx(3.0 + 3 * 1.0 / 400, rel=1e-3)


def test_waits_cost_a_slow_host_what_the_device_then_does_alone():
    """Each time the last launch, 0.01 s of the device's, is not overlapped."""
    assert queued_s([Stretch(100, 2.0, 1.0, n_waits=9)]) == pytest.approx(2.0 + 9 * 0.01)


def test_a_wait_lies_behind_the_launches_before_it():
    """The host waits after half of a, when the device still has 0.3 s of the last step's b: it ends b and
    that half, 0.1 s, alone, then the host's other half and b's 0.1 s follow. Where it waits at a's begin,
    nothing of a is issued while the device has b: 0.9 s of b, then all of a's second."""
    b = Stretch(10, 0.1, 0.9)
    half, begin = (Stretch(100, 1.0, 0.2, n_waits=1, n_before=n) for n in (50, 1))
    assert queued_s([half, b]) == pytest.approx(0.9 + 0.1 + 0.5, rel=0.02)
    assert queued_s([begin, b]) == pytest.approx(0.9 + 1.0, rel=0.02)


class Masked(torch.nn.Module):
    """Reads a mask first; many small layers, then a large one."""

    def __init__(self, n_layers):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(n_layers)])
        self.head = torch.nn.Linear(8, 2**20)

    def forward(self, x, mask):
        return self.head(self.layers(x)) if mask.all() else x


def test_a_large_head_behind_many_small_layers_does_not_hide_them():
    """The host issues 400 layers while the device waits for each; the device then has the head, and where the
    next step's mask is read the host waits for that."""
    with torch.device("meta"):
        module = Masked(400)
    given = torch.empty(2**13, 8, device="meta"), torch.ones(4, dtype=torch.long)
    found = module_time(capture_module(module, given), device(call_s=2e-6))
    head_s = max(each.device_s for each in found.operators)
    assert found.step_s.estimate == pytest.approx(found.host_s + head_s, rel=0.05)
    assert found.step_s.estimate > 1.2 * max(found.host_s, found.device_s)


def test_an_optimizer_over_lists_keeps_the_device_waiting_before_it_launches_anything():
    """The next step reads its mask when the optimizer's work is done, so nothing else hides it."""
    with torch.device("meta"):
        module = Masked(50)
        module.head = torch.nn.Linear(8, 2**24)
    given = torch.empty(4, 8, device="meta"), torch.ones(4, dtype=torch.long)
    capture = capture_module(module, given, pass_="train_step", loss=lambda y: y.sum())
    found = module_time(capture, device(call_s=20 * US))
    forward, backward, optimizer = found.phases
    before_s = BEFORE_FOREACH * optimizer.host_s
    assert optimizer.device_s > 2 * (optimizer.host_s - before_s)
    alone_s = forward.host_s + backward.host_s + before_s + optimizer.device_s
    assert found.step_s.estimate == pytest.approx(alone_s, rel=0.03)


def test_a_full_queue_is_what_the_device_still_has_to_do():
    """The device is behind by DEPTH launches of 3 ms when the host goes on to b, which takes it 4 s."""
    a, b = Stretch(3000, 0.003, 9.0), Stretch(1, 4.0, 0.0)
    assert queued_s([a, b]) == pytest.approx(9.0 - 3.063 + 4.0, rel=1e-3)


STRETCHES = st.lists(
    st.builds(
        Stretch,
        st.integers(1, 300),
        st.floats(0, 1),
        st.floats(0, 1),
        st.integers(0, 5),
        st.integers(0, 300),
    ),
    min_size=1,
    max_size=3,
)


@given(STRETCHES)
def test_a_step_takes_the_longer_of_both_at_least_and_their_sum_at_most(stretches):
    host_s, device_s = (sum(each[i] for each in stretches) for i in (1, 2))
    found = queued_s(stretches)
    assert found >= max(host_s, device_s) * (1 - 1e-9) - 1e-9
    assert found <= (host_s + device_s) * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("captured", [False, True])
def test_kernels_are_told_with_what_lies_between_them(captured):
    """In a graph between two that are hardly more than their launch alone."""
    made = case("small", seq_len=512, pass_="forward", precision="bf16", cuda_graphs=captured)
    setting = of_case(made)
    alone = [(each, cost(each, setting, H200)) for each in op_graph(made).operators]
    is_short = [each.bound == "launch" for _, each in alone]
    counted = [
        not captured or (own and before)
        for before, own in zip([True, *is_short], is_short, strict=False)
    ]
    assert set(is_short) == {False, True}
    n_behind = sum(
        op.count * each.n_launches
        for (op, each), is_counted in zip(alone, counted, strict=True)
        if is_counted
    )
    told_s = sum(each.device_s for each in step_time(made, H200).phases)
    between_s = told_s - sum(op.count * each.device_s for op, each in alone)
    assert between_s == pytest.approx(BETWEEN_S * n_behind, rel=1e-6)
