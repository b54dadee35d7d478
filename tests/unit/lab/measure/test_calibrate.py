"""The ceilings of this machine, measured small."""

import pytest
import torch

from peakward.lab.measure import calibrate
from peakward.lab.measure.clock import CpuClock

MIB = 2**20


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(calibrate.SIZES, "cpu", (32, 64))
    monkeypatch.setitem(calibrate.TIMED_S, "cpu", 0.001)
    monkeypatch.setitem(calibrate.COPY_BYTES, "cpu", MIB)
    monkeypatch.setattr(calibrate.proc, "last_cache_bytes", lambda: 0)


def test_a_cpu_s_ceilings(small):
    found = calibrate.calibrate("cpu")
    assert [rate.compute_type for rate in found.matmul] == ["fp32", "bf16", "fp16"]
    assert all(rate.flops_per_s > 0 and rate.size in (32, 64) for rate in found.matmul)
    assert found.copy_bytes_per_s > 0
    assert found.copy_size_bytes == MIB


def test_a_crowded_cpu_is_a_doubt(small, monkeypatch):
    monkeypatch.setattr(calibrate.Crowd, "doubt", lambda self: "other work took half")
    assert calibrate.calibrate("cpu").doubt == "other work took half"


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        ((6, 1), ["fp32"]),
        ((7, 0), ["fp32", "fp16"]),
        ((8, 0), ["fp32", "tf32", "bf16", "fp16"]),
        ((8, 9), ["fp32", "tf32", "bf16", "fp16", "fp8"]),
        ((9, 0), ["fp32", "tf32", "bf16", "fp16", "fp8"]),
    ],
)
def test_types_by_capability(monkeypatch, capability, names):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert [each.name for each in calibrate.types("cuda")] == names


def test_products_are_of_their_type_and_right():
    for each in calibrate.types("cpu"):
        torch.manual_seed(0)
        result = calibrate.product(each, 16, "cpu")()
        torch.manual_seed(0)
        a, b = (torch.randn(16, 16).to(each.dtype).double() for _ in range(2))
        assert result.dtype == each.dtype
        torch.testing.assert_close(result.double(), a @ b, rtol=0.02, atol=0.05)


def test_the_best_size_counts_and_slow_ones_are_not_tried(monkeypatch):
    tried = []

    def seconds(call, device_type, clock):
        size = call().shape[0]
        tried.append(size)
        return {32: 1e-3, 64: 1e-3, 128: 0.1, 256: 1e9}[size]

    monkeypatch.setitem(calibrate.SIZES, "cpu", (32, 64, 128, 256))
    monkeypatch.setattr(calibrate, "_seconds", seconds)
    fp32 = next(calibrate.types("cpu"))
    best = calibrate._best_rate(fp32, "cpu", CpuClock())
    assert tried == [32, 64, 128]
    assert (best.size, best.flops_per_s) == (64, 2 * 64**3 / 1e-3)


@pytest.mark.parametrize(
    ("cache", "available", "size"),
    [
        (0, 64 * 2**30, 256 * MIB),
        (384 * MIB, 64 * 2**30, 1536 * MIB),
        (384 * MIB, 2**30, 256 * MIB),
    ],
)
def test_the_copy_is_far_larger_than_the_cache_within_a_quarter_of_memory(
    monkeypatch, cache, available, size
):
    monkeypatch.setattr(calibrate.proc, "last_cache_bytes", lambda: cache)
    monkeypatch.setattr(calibrate.proc, "available_bytes", lambda: available)
    assert calibrate.copy_size_bytes("cpu") == size
