"""Layouts over NCCL end with the parameters of one process, as over gloo; collectives and lost ranks."""

import msgspec
import pytest
import torch

from peakward.lab.parallel.launch import RankError
from peakward.lab.parallel.measured import calibrate, measure
from peakward.models.presets import model
from peakward.records.case import Configuration, LayoutCase, Workload
from peakward.records.layout import CAPTURABLE, Layout
from peakward.records.measurement import Protocol
from peakward.records.parallel import Arm, ArmRun, ArmsRequest
from peakward.stats.stragglers import stragglers
from unit.lab.parallel.job import run_ranks
from unit.lab.parallel.test_layouts import TWO

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


def test_three_steps_over_nccl_end_with_the_parameters_of_one_process():
    cases = [{"kind": kind, "layout": layout, "optimizer": "sgd"} for kind, layout in TWO.values()]
    by_rank = run_ranks(
        "layouts:compare", {"cases": cases}, n_ranks=2, device="cuda", timeout_s=300
    )
    for name, *found in zip(TWO, *by_rank, strict=True):
        assert max(each["parameters"] for each in found) < 1e-12, name


def test_collectives_of_two_gpus_are_timed():
    found = calibrate(2, "cuda", sizes_mb=(1, 10))
    assert found.backend == "nccl" and len(found.times) == 10
    assert min(each.bus_bytes_per_s for each in found.times) > 1e9


def test_a_hung_rank_is_named_over_nccl():
    with pytest.raises(RankError, match="rank 1 is behind") as caught:
        run_ranks("lost:lose", {"rank": 1, "how": "hangs"}, n_ranks=2, device="cuda", patience_s=5)
    assert caught.value.rank == 1


def layout_case(layout):
    return LayoutCase(
        model=model("medium"),
        workload=Workload(batch_size=8, seq_len=1024),
        configuration=Configuration(precision="bf16", attention="sdpa", optimizer="adamw-fused"),
        layout=layout,
        device="cuda",
    )


def test_what_is_called_overlapped_is_and_what_is_not_is_not():
    """The share of NCCL's time in which other kernels ran, and bytes and memory of each rank."""
    shares = {}
    for data in ("overlapped", "ddp", "per-parameter"):
        found = measure(layout_case(Layout(dp=2, data=data)), Protocol(min_steps=5), 120.0)
        ranks = found.ranks.ranks
        shares[data] = [1 - each.exposed_s / each.communication_s for each in ranks]
        n_bytes = 2 * found.n_parameters
        for each in ranks:
            assert sum(one.n_bytes for one in each.sent) == n_bytes
            assert n_bytes <= each.built_bytes <= each.between_bytes < each.peak_bytes
    assert min(shares["overlapped"]) > 0.3 and min(shares["ddp"]) > 0.3
    assert max(shares["per-parameter"]) < 0.1


@pytest.mark.parametrize("data", CAPTURABLE)
def test_a_step_as_one_graph_goes_the_same_way(data):
    """Losses of eight steps; memory and bytes as without the graph."""
    plain, graph = (
        measure(layout_case(Layout(dp=2, data=data, captured=each)), Protocol(min_steps=4), 120.0)
        for each in (False, True)
    )
    assert graph.loss == pytest.approx(plain.loss, rel=5e-3)
    for one, other in zip(plain.ranks.ranks, graph.ranks.ranks, strict=True):
        assert other.sent == one.sent
        assert other.held_bytes == one.held_bytes
        assert other.peak_bytes == pytest.approx(one.peak_bytes, rel=0.05)


@pytest.mark.parametrize("slept_s", [0.05, 0.0])
def test_a_rank_that_sleeps_in_its_forward_pass_is_late_over_nccl(slept_s):
    # Four jobs were too few: 40 ms in one and 85 in another (two H200s) are not beyond chance at 1%.
    layouts = [
        *(Layout(dp=2, data=each) for each in ("ddp", "overlapped", "zero1", "zero2", "fsdp")),
        Layout(dp=2, bucket_mb=25),
        Layout(dp=2, data="fsdp", blocks_together=2),
        Layout(dp=2, data="fsdp", wrap="whole"),
    ]
    request = ArmsRequest(
        case=layout_case(layouts[0]).of_one_rank,
        arms=tuple(
            Arm(name=f"{each.name} {at}", layout=each, compiled=False)
            for at, each in enumerate(layouts)
        ),
        n_solo_steps=3,
        accounts=True,
    )
    given = {"rank": 1, "seconds": slept_s, "request": msgspec.to_builtins(request)}
    by_rank = [
        msgspec.convert(each["runs"], list[ArmRun])
        for each in run_ranks("lost:sleepy", given, n_ranks=2, device="cuda", timeout_s=240)
    ]
    jobs = [
        {rank: each.use.own_s for rank, each in enumerate(own)}
        for own in zip(*by_rank, strict=True)
    ]
    assert [each.rank for each in stragglers(jobs)] == ([1] if slept_s else []), jobs
    assert all(each.use.sm_clock_mhz for own in by_rank for each in own)


def test_a_loss_that_is_not_a_number_is_named_over_nccl():
    case = layout_case(Layout(dp=2)).of_one_rank
    request = ArmsRequest(case=case, arms=(Arm(name="ddp", layout=Layout(dp=2), compiled=False),))
    with pytest.raises(
        RankError, match=r"rank 1 failed .*expected a finite loss, got nan in step 1"
    ):
        run_ranks("lost:poisoned", msgspec.to_builtins(request), n_ranks=2, device="cuda")
