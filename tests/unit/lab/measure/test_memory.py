"""Peak memory and memory limits of this very process."""

import resource

import pytest
import torch

from peakward.lab.measure import memory
from peakward.lab.measure.failure import OverLimitError
from peakward.lab.measure.memory import CpuMeter
from peakward.records.measurement import MemoryUse

MIB = 2**20
GIB = 2**30


def touched(n_bytes):
    return torch.ones(n_bytes, dtype=torch.uint8)


@pytest.mark.parametrize("exact", [True, False])
def test_cpu_peak_is_the_growth_of_the_resident_set(monkeypatch, exact):
    if not exact:  # as where /proc/self/clear_refs may not be written
        monkeypatch.setattr(memory, "_reset_high_water", lambda: False)
        monkeypatch.setattr(memory, "SAMPLE_PERIOD_S", 0.001)
    elif not memory._reset_high_water():
        pytest.skip("this kernel does not let a process reset its high-water mark")
    touched(256 * MIB)  # an earlier, higher peak that must not count
    with CpuMeter() as meter:
        held = touched(128 * MIB)
        if not exact:
            while meter._sampled - meter._before < 120 * MIB:
                pass
        del held
        use = meter.use()
    assert 120 * MIB < use.peak_allocated_bytes < 200 * MIB
    assert use.peak_reserved_bytes is None
    assert use.context_bytes is None


def test_nothing_grown_is_nothing_used():
    with CpuMeter() as meter:
        pass
    assert meter.use().peak_allocated_bytes < 8 * MIB


def test_a_cpu_limit_refuses_what_is_over_it_and_is_undone():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with memory.limited("cpu", 3 * GIB, context_bytes=None):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 3 * GIB
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            torch.empty(4 * GIB, dtype=torch.uint8)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert torch.empty(4 * GIB, dtype=torch.uint8).numel() == 4 * GIB


def test_a_cpu_limit_is_undone_when_the_case_fails():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(ValueError), memory.limited("cpu", 8 * GIB, context_bytes=None):
        raise ValueError
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_cpu_limit_below_what_the_process_holds_is_said():
    with (
        pytest.raises(OverLimitError, match=r"takes .* GiB of the limit of 0.01 GiB before"),
        memory.limited("cpu", 10 * MIB, context_bytes=None),
    ):
        pass


def test_no_limit_changes_nothing():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with memory.limited("cpu", None, context_bytes=None):
        assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.fixture
def allocator(monkeypatch):
    """A CUDA allocator of an 80 GiB device that notes what fraction it was given."""
    fractions = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties = type("Properties", (), {"total_memory": 80 * GIB})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", fractions.append)
    return fractions


@pytest.mark.parametrize(
    ("limit", "context", "fraction"),
    [(24 * GIB, GIB, 23 / 80), (24 * GIB, None, 24 / 80), (200 * GIB, GIB, 1.0)],
)
def test_a_cuda_limit_is_the_allocator_s_share_without_the_context(
    allocator, limit, context, fraction
):
    with memory.limited("cuda", limit, context_bytes=context):
        assert allocator == [fraction]
    assert allocator == [fraction, 1.0]


def test_a_cuda_limit_below_the_context_is_said(allocator):
    with (
        pytest.raises(OverLimitError, match=r"context alone takes 0.50 GiB of the limit of 0.25"),
        memory.limited("cuda", GIB // 4, context_bytes=GIB // 2),
    ):
        pass
    assert allocator == []


@pytest.mark.parametrize(
    ("reserved", "context", "fits"),
    [(20, 4, True), (21, 4, False), (24, None, True), (None, None, True)],
)
def test_a_case_fits_by_what_it_reserved_and_its_context(reserved, context, fits):
    use = MemoryUse(
        peak_allocated_bytes=GIB,
        peak_reserved_bytes=None if reserved is None else reserved * GIB,
        context_bytes=None if context is None else context * GIB,
    )
    memory.check_fits(use, None)
    if fits:
        memory.check_fits(use, 24 * GIB)
    else:
        with pytest.raises(OverLimitError, match=r"21.00 GiB .* 4.00 GiB exceed .* 24.00 GiB"):
            memory.check_fits(use, 24 * GIB)


def test_release_gives_freed_heap_back():
    before = memory.release("cpu")
    small = [torch.ones(1000) for _ in range(100_000)]  # below malloc's threshold for mmap
    del small
    assert memory.is_clean("cpu", before, memory.release("cpu"))
    assert memory.release("cpu") - before < 100 * MIB


def test_a_leak_is_not_clean():
    assert not memory.is_clean("cpu", 0, GIB)
    assert not memory.is_clean("cuda", 0, 3 * MIB)
    assert memory.is_clean("cuda", 0, MIB)


def test_context_bytes_unknown_without_nvml():
    assert memory.context_bytes(None, None) is None
