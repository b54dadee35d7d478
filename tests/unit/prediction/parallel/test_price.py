"""One layout priced: its parts, what it sends, what its largest rank holds."""

import msgspec
import pytest

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.memory.peak import CONTEXT_BYTES, peak_memory
from peakward.prediction.parallel.candidate import Candidate, HostSeconds
from peakward.prediction.parallel.collectives import collective, group
from peakward.prediction.parallel.price import price
from peakward.prediction.parallel.rank_costs import CostTable
from peakward.prediction.parallel.rank_memory import memory
from peakward.prediction.parameters import n_parameters
from peakward.prediction.planning.site import site
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.layout import Layout
from peakward.records.layouts import Interconnect

H100 = site(device("h100-sxm-80")).model
LINKS = Interconnect(
    gpus_per_node=8,
    link_name="NVLink 4",
    link_bytes_per_s=450e9,
    network_name="InfiniBand NDR",
    network_bytes_per_s=50e9,
    oversubscription=1.0,
)


def case(precision="bf16-mixed", name="llama-3-8b", seq_len=2048, **sizes):
    return ModelCase(
        model=msgspec.structs.replace(model(name), **sizes),
        workload=Workload(batch_size=1, seq_len=seq_len),
        configuration=Configuration(
            precision=precision, attention="sdpa", compile="default", optimizer="adamw-fused"
        ),
        device="cuda",
    )


def priced(asked, layout, size=1, recomputed=0.0, links=LINKS, **more):
    given = Candidate(layout, size, recomputed, **more)
    costs = CostTable(asked, H100).of(size, layout.tp, layout.data, layout.cp, layout.ep)
    return price(asked, given, costs, links), memory(asked, given, costs), costs


def sent(found, axis, collective):
    return sum(
        each.sent_bytes
        for each in found.traffic
        if (each.axis, each.collective) == (axis, collective)
    )


@pytest.mark.parametrize(
    "layout",
    [
        Layout(dp=8, data="ddp"),
        Layout(dp=16, data="fsdp"),
        Layout(dp=8, data="zero1"),
        Layout(dp=2, data="zero2", tp=4, n_micro_batches=2),
        Layout(dp=2, data="fsdp", tp=2, pp=4, n_micro_batches=8),
        Layout(data="fsdp", cp=2, tp=2, pp=4, n_micro_batches=8),
        Layout(
            dp=2, data="ddp", pp=4, n_micro_batches=8, schedule="interleaved", stages_per_rank=2
        ),
    ],
    ids=lambda layout: layout.name,
)
def test_no_part_of_a_step_is_negative(layout):
    found, held, _ = priced(case(), layout)
    assert min(found.parts) >= 0
    assert found.compute_s > 0.3 * found.step_s
    assert min(getattr(held, name) for name in held.__struct_fields__) >= 0


def test_ddp_sends_gradients_in_their_own_type_twice_around():
    """2·(n - 1)/n of fp32 gradients under autocast, of bf16 ones without."""
    for precision, item in (("bf16-mixed", 4), ("bf16", 2)):
        asked = case(precision)
        found, _, _ = priced(asked, Layout(dp=8, data="ddp"))
        expected = 2 * 7 / 8 * item * n_parameters(asked.model)
        assert sent(found, "dp", "all-reduce") == pytest.approx(expected, rel=1e-9)


def test_fsdp_gathers_twice_and_reduces_once_in_16_bits():
    asked = case()
    found, _, _ = priced(asked, Layout(dp=8, data="fsdp"))
    once = 7 / 8 * 2 * n_parameters(asked.model)
    assert sent(found, "dp", "reduce-scatter") == pytest.approx(once)
    rest = 7 / 8 * 2 * (2 * 128_256 * 4096 + 4096)  # Stays whole between the passes.
    assert sent(found, "dp", "all-gather") == pytest.approx(2 * once - rest)


def test_the_host_of_fully_shard_is_a_block_s_and_a_call_s_and_a_graph_has_none():
    asked = case(n_layers=6)
    slow = HostSeconds(1.0, 0.1)
    ways = [
        Layout(dp=8, data="fsdp"),
        Layout(dp=8, data="fsdp", blocks_together=3),
        Layout(dp=8, data="fsdp", captured=True),
    ]
    each, together, graph = (priced(asked, way, host=slow)[0] for way in ways)
    # Blocks are gathered twice and reduced once, the rest is gathered and reduced once.
    assert each.step_s - each.update_s == pytest.approx(6 + 0.1 * (3 * 6 + 2))
    assert together.step_s - together.update_s == pytest.approx(6 + 0.1 * (3 * 2 + 2))
    assert graph.step_s == priced(asked, ways[0], host=HostSeconds(0.0, 0.0))[0].step_s < 1


def test_a_block_in_a_graph_takes_nothing_of_the_host():
    short, long = (case(name="small", seq_len=n) for n in (64, 8192))
    for asked, is_host_bound in ((short, True), (long, False)):
        costs = CostTable(asked, H100).of(1, 1, "zero2")
        assert (costs.captured_block.forward_s < costs.block.forward_s) is is_host_bound
        own, graph = (
            price(asked, Candidate(Layout(dp=2, data="zero2", captured=each), 1, 0.0), costs, LINKS)
            for each in (False, True)
        )
        less_s = 12 * (sum(costs.block) - sum(costs.captured_block))
        assert own.compute_s - graph.compute_s == pytest.approx(less_s)


@pytest.mark.parametrize(
    ("data", "dp", "n_bytes"), [("fsdp", 2, 21), ("zero2", 2, 14), ("fsdp", 1, 34)]
)
def test_what_fully_shard_copies_beside_its_collectives(data, dp, n_bytes):
    """Bytes a parameter in bf16-mixed: (4 + 2)/dp + 4 for a gathering, 4 + (2 + 4)/dp for the reduction; one
    rank alone sends itself 4 more."""
    asked, layout = case(n_layers=6), Layout(dp=dp, data=data, captured=True)
    given = Candidate(layout, 1, 0.0)
    costs = CostTable(asked, H100).of(1, 1, data)
    still = price(asked, given, costs._replace(moved_s=0.0), LINKS)
    moved = price(asked, given, costs._replace(moved_s=1e-12), LINKS)
    expected = n_bytes * 1e-12 * n_parameters(asked.model)
    assert moved.step_s - still.step_s == pytest.approx(expected)


def test_gradients_in_fp32_are_twice_as_many_bytes():
    narrow, wide = (
        sent(priced(case(), Layout(dp=8, data="fsdp"), reduce_bytes=n)[0], "dp", "reduce-scatter")
        for n in (2, 4)
    )
    assert wide == 2 * narrow


def test_tensor_parallelism_sums_four_times_a_block_and_gathers_the_logits():
    asked = case()
    found, _, _ = priced(asked, Layout(tp=4))
    act = 2048 * 4096 * 2
    assert sent(found, "tp", "all-reduce") == pytest.approx(2 * 3 / 4 * act * (4 * 32 + 2))
    assert sent(found, "tp", "all-gather") == pytest.approx(3 / 4 * 2048 * 128_256 * 2)
    again, _, _ = priced(asked, Layout(tp=4), recomputed=1.0)
    assert sent(again, "tp", "all-reduce") == pytest.approx(2 * 3 / 4 * act * (6 * 32 + 2))


def test_all_that_ranks_hold_is_16_bytes_a_parameter_over_them():
    """Autocast over fp32 parameters: 4 + 4 + 8; a sharded optimizer 8 + 8/N, shards 16/N with what is
    gathered, and the sums of micro-batches in 16 bits."""
    asked = case()
    n = n_parameters(asked.model)
    account = {}
    for data in ("ddp", "zero1", "zero2", "fsdp"):
        _, held, costs = priced(asked, Layout(dp=8, data=data, n_micro_batches=2))
        account[data] = held
    assert _states(account["ddp"]) == 16 * n
    assert _states(account["zero1"]) == 8 * n + 8 * n // 8
    block = costs.block_parameters
    rest = n - 32 * block
    sharded = 16 * n / 8 + 2 * n
    assert _states(account["fsdp"]) == pytest.approx(sharded + 2 * (2 * block + rest), abs=8)
    assert _states(account["zero2"]) == pytest.approx(sharded + 2 * n, abs=8)
    assert account["ddp"].context_bytes == CONTEXT_BYTES


def _states(held):
    return held.parameters_bytes + held.gradients_bytes + held.optimizer_state_bytes


def test_bf16_parameters_take_half():
    (_, mixed, _), (_, narrow, _) = (
        priced(case(precision), Layout(dp=8, data="ddp")) for precision in ("bf16-mixed", "bf16")
    )
    assert _states(narrow) == _states(mixed) / 2


def test_gradients_of_several_micro_batches_wait_whole():
    one, two = (priced(case(), Layout(dp=8, data="fsdp", n_micro_batches=m))[1] for m in (1, 2))
    whole = 2 * n_parameters(case().model)
    assert two.gradients_bytes - 4 * n_parameters(case().model) // 8 == whole
    assert one.gradients_bytes < two.gradients_bytes


def test_recomputation_takes_time_and_frees_memory():
    (plain, held, _), (again, less, _) = (
        priced(case(), Layout(dp=8, data="fsdp"), recomputed=share) for share in (0.0, 1.0)
    )
    assert again.compute_s > 1.2 * plain.compute_s
    assert less.activations_bytes < held.activations_bytes / 4


def test_a_rank_of_tensor_parallelism_has_its_share():
    (whole, held, _), (part, less, _) = (priced(case(), Layout(tp=tp)) for tp in (1, 4))
    assert part.compute_s < 0.45 * whole.compute_s
    assert _states(less) == pytest.approx(_states(held) / 4, rel=0.01)
    assert less.logits_bytes == held.logits_bytes  # Whole on every rank.


LONG = 32_768


def test_ranks_of_a_sequence_share_its_work_and_its_memory():
    asked = case(seq_len=LONG)
    (whole, held, _), (part, less, _) = (
        priced(asked, Layout(dp=4 // cp, data="zero2", cp=cp)) for cp in (1, 4)
    )
    assert part.compute_s == pytest.approx(whole.compute_s / 4, rel=0.03)
    assert less.activations_bytes == pytest.approx(held.activations_bytes / 4, rel=0.01)
    assert less.logits_bytes < held.logits_bytes / 3
    assert _states(less) == _states(held)  # Over as many ranks.


@pytest.mark.parametrize("cp", [2, 8])
def test_a_rank_attends_to_its_share_of_the_scores(cp):
    """Within its own part alone it would attend to 1/cp of that."""
    asked = case(seq_len=LONG)
    part = msgspec.structs.replace(
        asked, workload=msgspec.structs.replace(asked.workload, seq_len=LONG // cp)
    )
    table = CostTable(asked, H100)
    whole, own = (table.of(1, 1, "fsdp", each).block for each in (1, cp))
    alone = CostTable(part, H100).of(1, 1, "fsdp").block
    # A block's time is a·tokens + b·scores: own is both over cp, alone the scores over cp².
    for whole_s, own_s, alone_s in zip(whole, own, alone, strict=True):
        scores_s = (whole_s / cp - alone_s) / (1 - 1 / cp)
        assert own_s == pytest.approx(alone_s + scores_s * (1 - 1 / cp), rel=0.03)
        assert own_s > 1.05 * alone_s


def test_keys_and_values_are_gathered_twice_and_their_gradients_reduced():
    """Of a block: 2 tensors of 16 bits with a rank's heads; (cp - 1)/cp of them are sent."""
    asked = case(seq_len=LONG)
    found, _, _ = priced(asked, Layout(data="fsdp", cp=4, tp=2))
    once = 3 / 4 * 32 * 2 * 2 * LONG * (8 // 2) * 128
    assert sent(found, "cp", "all-gather") == pytest.approx(2 * once)
    assert sent(found, "cp", "reduce-scatter") == pytest.approx(once)
    assert found.context_s == pytest.approx(
        sum(each.time_s for each in found.traffic if each.axis == "cp")
    )
    again, _, _ = priced(asked, Layout(data="fsdp", cp=4, tp=2), recomputed=1.0)
    assert sent(again, "cp", "all-gather") == pytest.approx(3 * once)
    whole, _, _ = priced(asked, Layout(dp=4, data="fsdp", tp=2))
    assert whole.context_s == 0 and sent(whole, "cp", "all-gather") == 0


def test_ranks_of_a_sequence_reduce_gradients_as_those_of_the_data_axis():
    asked = case(seq_len=LONG)
    for data, kind in (("fsdp", "reduce-scatter"), ("ddp", "all-reduce")):
        apart, together = (priced(asked, Layout(dp=8 // cp, data=data, cp=cp))[0] for cp in (1, 4))
        assert sent(together, "dp", kind) == sent(apart, "dp", kind) > 0


def test_a_sequence_over_several_nodes_costs_the_network():
    asked = case(seq_len=LONG)
    near, far = (priced(asked, Layout(data="fsdp", cp=8, tp=tp))[0] for tp in (1, 2))
    # With tp 2 a rank has half of the heads, and those of a sequence are on two nodes.
    assert far.context_s > 1.3 * near.context_s / 2


def test_attention_that_keeps_its_scores_is_not_split():
    asked = case(seq_len=LONG)
    settings = msgspec.structs.replace(asked.configuration, attention="naive", compile="none")
    asked = msgspec.structs.replace(asked, configuration=settings)
    with pytest.raises(PeakwardError, match=r"expected attention in one kernel.*got naive"):
        CostTable(asked, H100).of(1, 1, "fsdp", 2)


def experts(**sizes):
    """The eight experts of Mixtral, two of which a token goes to."""
    asked = case("bf16", name="mixtral-8x7b", **sizes)
    eager = msgspec.structs.replace(asked.configuration, compile="none")
    return msgspec.structs.replace(asked, configuration=eager)


def test_tokens_go_to_their_experts_and_back_in_both_passes():
    """16 bits of each token for either of its experts, of which (ep - 1)/ep are on other ranks."""
    asked = experts()
    once = 3 / 4 * 2 * 2048 * 2 * 4096
    found, _, _ = priced(asked, Layout(dp=8, data="fsdp", ep=4))
    assert sent(found, "ep", "all-to-all") == pytest.approx(4 * 32 * once)
    assert found.expert_s == pytest.approx(
        sum(each.time_s for each in found.traffic if each.axis == "ep")
    )
    again, _, _ = priced(asked, Layout(dp=8, data="fsdp", ep=4), recomputed=1.0)
    assert sent(again, "ep", "all-to-all") == pytest.approx(6 * 32 * once)


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_experts_are_reduced_over_the_ranks_that_have_the_same(ep):
    asked = experts(n_layers=4)
    n_experts = 4 * 8 * asked.model.expert_parameters
    rest = n_parameters(asked.model) - n_experts
    for data, kind, times in (("fsdp", "reduce-scatter", 1), ("ddp", "all-reduce", 2)):
        found, _, _ = priced(asked, Layout(dp=8, data=data, ep=ep))
        of_rest = times * 7 / 8 * 2 * rest
        of_experts = times * (8 / ep - 1) / (8 / ep) * 2 * n_experts / ep
        assert sent(found, "dp", kind) == pytest.approx(of_rest + of_experts)


def test_a_rank_holds_its_own_experts_and_a_shard_of_all():
    asked = experts(n_layers=4)
    n, n_experts = n_parameters(asked.model), 4 * 8 * asked.model.expert_parameters
    (_, whole, _), (_, fewer, _) = (priced(asked, Layout(dp=8, data="ddp", ep=ep)) for ep in (1, 8))
    assert _states(whole) == 8 * n  # In bf16: 2 + 2 + 4 bytes.
    assert _states(fewer) == 8 * (n - n_experts + n_experts // 8)
    (_, whole, _), (_, fewer, _) = (
        priced(asked, Layout(dp=8, data="zero2", ep=ep)) for ep in (1, 8)
    )
    assert fewer.optimizer_state_bytes == whole.optimizer_state_bytes == pytest.approx(4 * n / 8)
    assert whole.parameters_bytes - fewer.parameters_bytes == 2 * n_experts * 7 // 8


def test_split_experts_compute_as_many_tokens():
    asked = experts()
    whole, split = (priced(asked, Layout(dp=8, data="fsdp", ep=ep))[0] for ep in (1, 8))
    assert split.compute_s == pytest.approx(whole.compute_s, rel=0.05)


def test_tokens_that_leave_the_node_go_by_one_adapter():
    """Of eight ranks on two nodes four are on the other one."""
    inside, across = (
        collective("all-to-all", 1e8, group(8, stride, 8), LINKS).time_s for stride in (1, 2)
    )
    assert across == pytest.approx(1e8 * 4 / 8 / (0.94 * 50e9), rel=0.01)
    assert across > 3 * inside


def test_stages_share_the_blocks_and_wait_for_one_another():
    found, held, costs = priced(case(), Layout(pp=4, n_micro_batches=4))
    plain, _, _ = priced(case(), Layout(n_micro_batches=4))
    assert found.compute_s < 0.5 * plain.compute_s
    assert found.pipeline_s > 0.3 * found.step_s  # Of (p - 1) / (m + p - 1) = 3/7, uneven stages.
    assert plain.pipeline_s == 0
    first = 4 * (8 * costs.block_parameters + costs.embedding_parameters)
    assert held.parameters_bytes in (first, first + 4 * 4096)


def test_a_tied_head_counts_once_where_both_are_on_a_rank():
    asked = case(name="llama-3.2-1b")
    _, held, _ = priced(asked, Layout(dp=8, data="ddp"))
    assert _states(held) == 16 * n_parameters(asked.model)


def test_a_slower_network_costs_ranks_of_several_nodes_alone():
    slow = msgspec.structs.replace(LINKS, network_bytes_per_s=5e9)
    wide, near = Layout(dp=64, data="fsdp"), Layout(dp=8, data="fsdp")
    assert priced(case(), wide, links=slow)[0].data_s > 3 * priced(case(), wide)[0].data_s
    assert priced(case(), near, links=slow)[0].data_s == priced(case(), near)[0].data_s


@pytest.mark.parametrize("compiled", ["none", "default"])
def test_one_rank_holds_what_one_gpu_does(compiled):
    """The tensors of `peak_memory`, but that gradients are there before the backward pass, as in buckets."""
    asked = case(n_layers=8)
    settings = msgspec.structs.replace(asked.configuration, compile=compiled)
    work = msgspec.structs.replace(asked.workload, batch_size=4, seq_len=4096)
    asked = msgspec.structs.replace(asked, configuration=settings, workload=work)
    _, held, _ = priced(asked, Layout(), size=4)
    alone = peak_memory(asked)
    assert alone.phase == "backward"
    early = held.gradients_bytes - alone.peak.gradients_bytes
    found = held.total_bytes - held.context_bytes - early
    assert found == pytest.approx(alone.peak_bytes, rel=0.02)
