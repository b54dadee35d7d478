"""What a step sends, counted with torch's fake process group; and how much of it is hidden."""

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from peakward.lab.models import decoder
from peakward.lab.parallel.ranks import Rank, mesh
from peakward.lab.parallel.step import ParallelStep
from peakward.lab.parallel.traffic import exposed, sent_by
from peakward.levers import catalogue
from peakward.models.presets import model
from peakward.records.case import Configuration
from peakward.records.layout import Layout

SHAPE = msgspec.structs.replace(
    model("tiny"),
    name="test",
    n_layers=3,
    d_model=256,
    d_ff=256,
    n_heads=256,
    n_kv_heads=256,
    head_dim=2,
    vocab_size=256,
)


def reduced(_state, bucket):
    """What torch does without a hook, in whose place its fake group gives no result."""
    dist.all_reduce(bucket.buffer())
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def counted(layout):
    """Calls and bytes by collective of the first rank of so many."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.n_ranks)
    try:
        module = decoder.build(
            SHAPE,
            attention=catalogue.function("attention", Configuration()),
            device="cpu",
            dtype=torch.float32,
            seed=0,
        )
        rank = Rank(0, layout.n_ranks, torch.device("cpu"))
        step = ParallelStep(module, layout, mesh(layout, rank), optimizer=torch.optim.SGD)
        if isinstance(wrapped := step._spread[0].module, DistributedDataParallel):
            wrapped.register_comm_hook(None, reduced)
        ids = torch.zeros((1, 4), dtype=torch.long)
        for _ in range(
            2
        ):  # torch makes buckets of the order of the first, and tells all in the second.
            step.step((ids, ids))
        sent = sent_by(lambda: step.step((ids, ids)))
    finally:
        dist.destroy_process_group()
    return {each.collective: (each.n_calls, each.n_bytes) for each in sent}


N_BYTES = 4 * sum(
    each.numel()
    for each in decoder.build(
        SHAPE,
        attention=catalogue.function("attention", Configuration()),
        device="cpu",
        dtype=torch.float32,
        seed=0,
    ).parameters()
)
N_PARAMETERS = 2 + 3 * 6 + 1
"""Table and head, six of each block, the last norm."""


@pytest.mark.parametrize("n", [2, 256])
def test_gradients_are_reduced_once(n):
    assert counted(Layout(dp=n, data="flat")) == {"all-reduce": (1, N_BYTES)}
    assert counted(Layout(dp=n, data="per-parameter")) == {"all-reduce": (N_PARAMETERS, N_BYTES)}


@pytest.mark.parametrize("n", [2, 256])
def test_buckets_hold_what_they_are_told_to(n):
    whole = counted(Layout(dp=n))
    by_one = counted(Layout(dp=n, bucket_mb=0))
    small = counted(Layout(dp=n, bucket_mb=1))
    assert whole["all-reduce"][1] == by_one["all-reduce"][1] == small["all-reduce"][1] == N_BYTES
    assert by_one["all-reduce"][0] == N_PARAMETERS
    assert 1 <= whole["all-reduce"][0] < small["all-reduce"][0] < N_PARAMETERS
    assert small["all-reduce"][0] >= N_BYTES / 2**20 / 2


def test_fsdp_gathers_blocks_twice_and_scatters_once():
    found = counted(Layout(dp=256, data="fsdp"))
    assert found["reduce-scatter"] == (4, N_BYTES)
    n_gathers, gathered = found["all-gather"]
    # Three blocks in both passes and what is in none once.
    assert n_gathers in (6, 7) and 1.5 * N_BYTES < gathered < 2 * N_BYTES


def test_blocks_that_are_gathered_at_once_are_fewer_calls():
    found = counted(Layout(dp=256, data="fsdp", blocks_together=3))
    assert found["all-gather"][0] in (2, 3) and found["reduce-scatter"] == (2, N_BYTES)


def test_zero2_gathers_once():
    found = counted(Layout(dp=256, data="zero2"))
    assert found["all-gather"] == (4, N_BYTES) and found["reduce-scatter"] == (4, N_BYTES)


def test_zero1_sends_updated_parameters_to_all():
    found = counted(Layout(dp=2, data="zero1"))
    assert found["all-reduce"][1] == N_BYTES and found["broadcast"][1] == N_BYTES


def test_tensor_parallelism_adds_up_twice_a_block_and_pass():
    found = counted(Layout(tp=256))
    activation = 4 * SHAPE.d_model * 4
    n_calls, n_bytes = found["all-reduce"]
    assert n_calls >= 4 * SHAPE.n_layers and n_bytes == n_calls * activation


def test_exposed_time_is_what_nothing_else_covers():
    own = [(0, 10), (5, 20), (100, 110)]
    assert exposed(own, [(15, 30)]) == pytest.approx((30e-9, 25e-9))
    assert exposed(own, [(0, 200)]) == pytest.approx((30e-9, 0.0))
    assert exposed([], [(0, 5)]) == (0.0, 0.0)
    assert exposed(own, []) == pytest.approx((30e-9, 30e-9))
