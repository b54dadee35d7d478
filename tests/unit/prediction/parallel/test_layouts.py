"""Which layouts there are, and which of them a plan takes."""

import re

import pytest

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.parallel.layouts import N_SHOWN, interconnect, layout_forecast, layout_plan
from peakward.prediction.planning.site import site
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.layout import Layout, expect_layout
from peakward.records.layouts import AskedLayout, Network
from peakward.report import layouts, markdown

H100 = site(device("h100-sxm-80"))
COMPILED = Configuration(
    precision="bf16-mixed", attention="sdpa", compile="default", optimizer="adamw-fused"
)

EAGER = Configuration(precision="bf16", attention="sdpa")


def case(name="llama-3-8b", batch_size=1, seq_len=2048, settings=COMPILED, **work):
    return ModelCase(
        model=model(name),
        workload=Workload(batch_size=batch_size, seq_len=seq_len, **work),
        configuration=settings,
        device="cuda",
    )


AS_SOLD = Network()


def planned(asked=None, n_gpus=16, network=AS_SOLD, on=H100, **wished):
    return layout_plan(
        asked or case(),
        on,
        n_gpus,
        asked=AskedLayout(**wished),
        network=network,
        command="x",
    )


def test_all_that_fit_are_ranked_and_taken_by_the_engine():
    found = planned()
    times = [each.step_s for each in found.layouts]
    assert times == sorted(times)
    assert len({(each.layout, each.checkpointing) for each in found.layouts}) == len(times)
    assert found.n_fitting >= len(times) > 20
    for each in found.layouts:
        expect_layout(each.layout, 16)
        assert each.memory.total_bytes <= found.limit_bytes
        assert each.tokens_per_s == pytest.approx(16 * 2048 / each.step_s)
        parts = each.compute_s + each.data_s + each.tensor_s + each.pipeline_s + each.update_s
        assert each.layout.cp == 1 and each.context_s == 0  # Of short sequences.
        assert parts == pytest.approx(each.step_s)
        own = each.layout.tp * each.layout.pp  # Its share of the batch, and of those behind it.
        assert each.layout.n_micro_batches * each.micro_batch_size == own


def test_every_way_of_the_engine_is_among_them():
    found = planned(case("medium", batch_size=4, seq_len=512))
    shown = [each.layout for each in found.layouts]
    assert found.n_fitting > N_SHOWN == len(shown)
    every = {"ddp", "overlapped", "zero1", "zero2", "fsdp"}
    for data in every:
        assert planned(case("medium", batch_size=4, seq_len=512), data=data).layouts
    assert {each.schedule for each in shown} == {"1f1b", "interleaved"}
    assert {each.checkpointing for each in found.layouts} == {"none", "every-block"}


def test_a_graph_is_a_layout_of_its_own_where_the_host_is_the_bound():
    small = planned(case("small", batch_size=4, seq_len=512), n_gpus=2, data="fsdp")
    ways = {(each.layout.captured, each.checkpointing): each.step_s for each in small.layouts}
    assert ways[True, "none"] < 0.97 * ways[False, "none"]
    assert "fsdp 2 g" in markdown.render(layouts.whole(small))
    large = planned(case("llama-3-8b", batch_size=2, seq_len=8192), n_gpus=16, data="fsdp")
    assert large.layouts and not any(each.layout.captured for each in large.layouts)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (Layout(tp=2), "expected n_heads that 2 ranks"),
        (Layout(pp=2, n_micro_batches=4), "expected a batch that 4 micro-batches divide, got 6"),
        (Layout(dp=2, data="flat"), "expected a strategy of"),
    ],
)
def test_what_the_engine_refuses_is_not_predicted(layout, said):
    with pytest.raises(PeakwardError, match=said):
        layout_forecast(case("xl", batch_size=3, seq_len=512), H100, layout)


def test_wishes_are_kept():
    found = planned(tp=2, pp=2, data="fsdp", micro_batch_size=1, checkpointing="every-block")
    assert found.layouts
    for each in found.layouts:
        assert (each.layout.tp, each.layout.pp, each.layout.data) == (2, 2, "fsdp")
        assert (each.micro_batch_size, each.checkpointing) == (1, "every-block")


def test_thousands_of_gpus_are_planned():
    found = planned(case("llama-3-70b", seq_len=8192), n_gpus=4096)
    assert found.layouts[0].layout.n_ranks == 4096
    assert found.n_fitting > 50


LONG = 131_072


def test_a_sequence_that_is_too_long_for_a_gpu_is_split():
    asked = case("llama-3-70b", seq_len=LONG)
    assert planned(asked, n_gpus=1024, cp=1).layouts == ()
    found = planned(asked, n_gpus=1024)
    assert found.layouts and {each.layout.cp for each in found.layouts} <= {2, 4, 8, 16}
    for each in found.layouts:
        layout = each.layout
        expect_layout(layout, 1024)
        assert layout.n_micro_batches == layout.tp * layout.pp * layout.cp
        assert each.tokens_per_s == pytest.approx(1024 * LONG / each.step_s)
        parts = each.compute_s + each.data_s + each.tensor_s + each.pipeline_s + each.update_s
        assert parts + each.context_s == pytest.approx(each.step_s)
    page = markdown.render(layouts.summary(found))
    assert "Peakward's own engine has no context parallelism, and none" in page
    assert "tp, cp, bubble: waiting for them" in page
    assert layouts.layout_code(found.layouts[0]) in page and "cp=" in page


def test_the_fastest_layout_that_the_engine_runs_is_named_beside():
    found = planned(case(seq_len=32_768), n_gpus=64)
    best = found.layouts[0]
    runs = next(each for each in found.layouts if each.layout.cp == 1)
    assert best.layout.cp > 1 and runs.step_s > best.step_s
    page = markdown.render(layouts.summary(found))
    assert f"The fastest without: {runs.layout.name}" in " ".join(page.split())


def test_fewer_tokens_of_a_sequence_are_kept_where_that_is_asked_for():
    assert {each.layout.cp for each in planned().layouts} == {1}
    assert {each.layout.cp for each in planned(cp=4).layouts} == {4}
    layout = Layout(dp=4, data="fsdp", cp=4, n_micro_batches=4)
    forecast = layout_forecast(case(), H100, layout)
    assert forecast in planned(cp=4, data="fsdp", checkpointing="none").layouts
    with pytest.raises(PeakwardError, match="expected a sequence of 16 chunks"):
        layout_forecast(case(), H100, Layout(data="fsdp", cp=8, n_micro_batches=8))


def test_attention_that_no_ranks_can_share_leaves_the_axis_out_with_the_reason():
    eager = Configuration(precision="bf16", attention="naive")
    found = planned(case(seq_len=16_384, settings=eager), n_gpus=64)
    assert {each.layout.cp for each in found.layouts} <= {1}
    assert any("expected attention in one kernel" in each for each in found.refused)


def test_experts_are_split_over_ranks_that_else_share_parameters():
    asked = case("mixtral-8x7b", seq_len=4096, settings=EAGER)
    found = planned(asked, n_gpus=64)
    assert {each.layout.ep for each in found.layouts} == {1, 2, 4, 8}
    assert {each.layout.tp for each in found.layouts} == {1}
    for each in found.layouts:
        expect_layout(each.layout, 64)
        assert each.layout.n_sharing % each.layout.ep == 0
        assert (each.expert_s > 0) == (each.layout.ep > 1)
        parts = each.compute_s + each.data_s + each.tensor_s + each.pipeline_s + each.update_s
        assert parts + each.context_s + each.expert_s == pytest.approx(each.step_s)
    assert {each.layout.ep for each in planned(asked, n_gpus=64, ep=4).layouts} == {4}
    page = " ".join(markdown.render(layouts.summary(found)).split())
    assert found.layouts[0].layout.ep > 1
    assert "Peakward's own engine has no expert parallelism. The fastest without:" in page


def test_a_wish_for_experts_that_no_strategy_splits_is_refused():
    asked = case("mixtral-8x7b", seq_len=4096, settings=EAGER)
    with pytest.raises(PeakwardError, match=r"expected ddp, zero2, fsdp .*, got zero1 over 64"):
        planned(asked, n_gpus=64, ep=8, data="zero1")
    with pytest.raises(PeakwardError, match=r"multiple of 8 ranks .*, got data over 4"):
        planned(asked, n_gpus=64, ep=8, pp=16)


def test_what_fits_nowhere_is_said():
    found = planned(case("llama-3.1-405b", settings=EAGER), 8)
    assert found.layouts == ()
    assert found.smallest_bytes > found.limit_bytes


def test_heads_that_no_axis_splits_are_left_out_with_the_reason():
    found = planned(case("qwen2.5-0.5b", settings=EAGER), 8)
    assert (
        "expected n_heads that 4 ranks of tensor parallelism can share, got 14" in found.refused[0]
    )
    assert max(each.layout.tp for each in found.layouts) == 2


@pytest.mark.parametrize(
    ("wished", "line"),
    [
        ({"tp": 8, "pp": 4}, "expected at most 16 ranks, one a GPU, got tp 8 × pp 4"),
        ({"pp": 3}, "expected axes that divide 16 GPUs, got pp 3"),
        (
            {"ep": 2},
            "expected experts that 2 ranks of expert parallelism can share, got a dense model",
        ),
        ({"cp": 4, "tp": 8}, "expected at most 16 ranks, one a GPU, got cp 4 × tp 8"),
        (
            {"cp": 8},
            "expected a sequence of 16 chunks of at least 256 tokens for context parallelism over 8 ranks, "
            "got 2048 tokens",
        ),
        ({"tp": 16}, "expected tensor parallelism inside of a node of 8 GPUs, got tp 16"),
        (
            {"micro_batch_size": 64},
            "expected a batch that a layout's micro-batches divide, got none",
        ),
        (
            {"tp": 2, "pp": 1, "data": "ddp"},
            "expected fsdp, zero2 or overlapped beside tensor parallelism, got ddp",
        ),
    ],
)
def test_wishes_that_cannot_be_are_refused(wished, line):
    with pytest.raises(PeakwardError, match=re.escape(line)):
        planned(**wished)


def test_heads_and_layers_that_an_axis_cannot_split_are_refused():
    with pytest.raises(PeakwardError, match=r"expected n_heads that 4 ranks .* can share, got 14"):
        planned(case("qwen2.5-0.5b", settings=EAGER), 8, tp=4)
    with pytest.raises(PeakwardError, match="a block for each of 64 stages, got 32"):
        planned(n_gpus=64, pp=64)


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (case(pass_="forward"), "expected a train_step to plan layouts"),
        (case(accumulate=2), "expected a plain step to plan layouts .*, got accumulation"),
        (case(settings=Configuration()), "expected precision bf16-mixed or bf16 .*, got fp32"),
        (case("mixtral-8x7b"), "expected compile of a mixture of experts none"),
    ],
)
def test_cases_without_layouts_are_refused(asked, line):
    with pytest.raises(PeakwardError, match=line):
        planned(asked)


def test_the_interconnect_is_the_device_s_unless_another_is_given():
    h100 = device("h100-sxm-80")
    found = interconnect(h100, 64, Network())
    assert (found.gpus_per_node, found.network_bytes_per_s) == (8, 50e9)
    assert interconnect(h100, 8, Network()).network_bytes_per_s is None
    given = Network(gpus_per_node=4, bytes_per_s=25e9, oversubscription=2.0)
    found = interconnect(h100, 64, given)
    assert (found.gpus_per_node, found.network_bytes_per_s, found.oversubscription) == (
        4,
        25e9,
        2.0,
    )


@pytest.mark.parametrize(
    ("key", "n_gpus", "network", "line"),
    [
        ("l4-24", 8, Network(), "a device with a link to its neighbours, got NVIDIA L4"),
        ("h100-sxm-80", 12, Network(), "a number of GPUs that nodes of 8 make up, got 12"),
        ("h100-sxm-80", 32, Network(gpus_per_node=16), "at most 8 GPUs in a node"),
        ("mi300x-192", 16, Network(), "a network between nodes, got none catalogued"),
    ],
)
def test_links_that_nobody_knows_are_refused(key, n_gpus, network, line):
    with pytest.raises(PeakwardError, match=line):
        interconnect(device(key), n_gpus, network)


def test_a_slower_network_changes_which_layout_is_taken():
    asked = case("llama-3-70b", seq_len=4096)
    rates = (50e9, 1.5e9)
    fast, slow = (planned(asked, 64, Network(bytes_per_s=rate)).layouts[0] for rate in rates)
    assert fast.layout != slow.layout
    shards = [
        planned(asked, 64, Network(bytes_per_s=rate), tp=1, pp=1, data="fsdp").layouts[0]
        for rate in rates
    ]
    assert shards[1].step_s > 5 * shards[0].step_s
    assert slow.step_s < 2 * fast.step_s
