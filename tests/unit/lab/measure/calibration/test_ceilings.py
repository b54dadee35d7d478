"""The ceilings of this machine, measured small."""

import pytest

from peakward.lab.measure.calibration import ceilings
from peakward.lab.measure.calibration.products import types
from peakward.lab.measure.clock import CpuClock

MIB = 2**20


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(ceilings.SIZES, "cpu", (32, 64))
    monkeypatch.setitem(ceilings.TIMED_S, "cpu", 0.001)
    monkeypatch.setitem(ceilings.COPY_BYTES, "cpu", MIB)
    monkeypatch.setattr(ceilings.proc, "last_cache_bytes", lambda: 0)


def test_a_cpu_s_ceilings(small):
    found = ceilings.ceilings("cpu")
    assert [rate.compute_type for rate in found.matmul] == ["fp32", "bf16", "fp16"]
    assert all(rate.flops_per_s > 0 and rate.size in (32, 64) for rate in found.matmul)
    assert found.copy_bytes_per_s > 0
    assert found.copy_size_bytes == MIB


def test_a_crowded_cpu_is_a_doubt(small, monkeypatch):
    monkeypatch.setattr(ceilings.Crowd, "doubt", lambda self: "other work took half")
    assert ceilings.ceilings("cpu").doubt == "other work took half"


def test_the_best_size_counts_and_slow_ones_are_not_tried(monkeypatch):
    tried = []

    def seconds(call, device_type, clock):
        size = call().shape[0]
        tried.append(size)
        return {32: 1e-3, 64: 1e-3, 128: 0.1, 256: 1e9}[size]

    monkeypatch.setitem(ceilings.SIZES, "cpu", (32, 64, 128, 256))
    monkeypatch.setattr(ceilings, "_seconds", seconds)
    fp32 = next(types("cpu"))
    best = ceilings._best_rate(fp32, "cpu", CpuClock())
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
    monkeypatch.setattr(ceilings.proc, "last_cache_bytes", lambda: cache)
    monkeypatch.setattr(ceilings.proc, "available_bytes", lambda: available)
    assert ceilings.copy_size_bytes("cpu") == size
