"""Real traces against figures that were computed independently."""

import numpy as np
import pytest

from peakward.traces.readers.torch_json import read
from peakward.traces.table import Direction, GpuKind, HostKind, JobRank


def union_ns(table) -> int:
    """Time in which anything ran on a GPU."""
    busy, until = 0, -1
    for start, end in sorted(
        zip(table.gpu.start_ns.tolist(), table.gpu.end_ns.tolist(), strict=True)
    ):
        busy += max(0, end - max(start, until))
        until = max(until, end)
    return busy


@pytest.mark.parametrize(
    ("name", "n_gpu", "n_kernels", "span_ns", "busy_ns"),
    [
        ("a100_ddp_nccl_ns", 3774, 2700, 660_551_005, 157_500_014),
        ("two_ranks_us_rank0", 1204, 1154, 1_222_847_000, 547_656_000),
        ("two_ranks_us_rank1", 1154, 1104, 1_231_186_000, 580_050_000),
    ],
)
def test_gpu_time_is_exact(exact_traces, name, n_gpu, n_kernels, span_ns, busy_ns):
    table = read(exact_traces / f"{name}.json.gz")
    assert len(table.gpu) == n_gpu
    assert np.count_nonzero(table.gpu.kind == GpuKind.KERNEL) == n_kernels
    assert table.gpu.end_ns.max() - table.gpu.start_ns.min() == span_ns
    assert union_ns(table) == busy_ns
    assert table.limits == ()


def test_ddp_rank(exact_traces):
    table = read(exact_traces / "a100_ddp_nccl_ns.json.gz")
    assert np.bincount(table.host.kind).tolist() == [14346, 8740, 42]
    assert table.job == JobRank(rank=0, world_size=2)
    assert [each.id for each in table.devices] == list(range(8))
    assert table.devices[0].name == "NVIDIA A100-PG509-200"
    assert table.devices[0].n_sms == 108
    assert table.epoch_ns == 1_711_964_646_000_000_000
    assert "thread 2919752 (pt_autograd_0)" in [each.name for each in table.threads]
    assert table.processes[table.gpu.process[0]] == "2910249"
    calls = table.host.correlation[table.host.kind == HostKind.CALL]
    assert np.isin(table.gpu.correlation, calls).all()


def test_times_since_1970_need_no_base(exact_traces):
    assert read(exact_traces / "two_ranks_us_rank0.json.gz").epoch_ns == 0


@pytest.mark.parametrize(
    ("name", "device", "direction"),
    [
        ("h100_bert_small", 0, Direction.DEVICE_TO_HOST),
        ("mi300_bert_small", 2, Direction.DEVICE_TO_DEVICE),
    ],
)
def test_nvidia_and_amd(exact_traces, name, device, direction):
    table = read(exact_traces / f"{name}.json.gz")
    copy = table.gpu.kind == GpuKind.COPY
    assert (len(table.gpu), np.count_nonzero(copy)) == (61, 1)
    assert set(table.gpu.device.tolist()) == {device}
    assert table.gpu.direction[copy].tolist() == [direction]
    assert table.gpu.n_bytes[copy].tolist() == [1]
    assert (table.gpu.n_bytes[~copy] == -1).all()
    assert np.isin(table.gpu.correlation, table.host.correlation).all()
