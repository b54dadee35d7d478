"""Working sets, and the level that holds each."""

from types import SimpleNamespace

import pytest
import torch

from peakward.kernels.ops.pointer_chase import reference
from peakward.lab.measure.calibration import levels
from peakward.lab.measure.calibration.timing import NotMeasurableError, outcome
from peakward.lab.measure.proc import Cache
from peakward.records.calibration import Absence, LoadLatency

KIB, MIB = 2**10, 2**20
CACHES = (Cache("L1", 32 * KIB), Cache("L2", MIB), Cache("L3", 32 * MIB))


@pytest.mark.parametrize(
    ("size", "level"),
    [
        (8 * KIB, "L1"),
        (16 * KIB, "L1"),
        (32 * KIB, None),
        (33 * KIB, "L2"),
        (16 * MIB, "L3"),
        (32 * MIB, None),
        (64 * MIB, None),
        (128 * MIB, "memory"),
    ],
)
def test_a_cache_holds_what_fits_twice(size, level):
    assert levels.level_of(size, CACHES, 4) == level


def test_where_no_cache_is_known_no_level_is_named():
    assert {levels.level_of(size, (), 4) for size in (KIB, MIB, 2**40)} == {None}


def test_working_sets_reach_memory():
    sizes = levels.working_sets(8 * KIB, CACHES, 4)
    assert sizes == tuple(8 * KIB * 4**i for i in range(8))
    assert {levels.level_of(size, CACHES, 4) for size in sizes} == {
        "L1",
        "L2",
        "L3",
        "memory",
        None,
    }
    assert levels.working_sets(8 * KIB, (), 4)[-1] >= 4 * levels.UNKNOWN_BYTES


def test_a_gpu_has_its_l2_and_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties = SimpleNamespace(L2_cache_size=50 * MIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    assert levels.sets("cuda") == (
        (4 * MIB, "L2", 50 * MIB),
        (16 * MIB, "L2", 50 * MIB),
        (64 * MIB, None, None),
        (256 * MIB, None, None),
        (1024 * MIB, "memory", None),
    )


def test_a_set_that_would_fill_the_memory_is_not_tried(monkeypatch):
    monkeypatch.setattr(levels.proc, "caches", lambda: (Cache("L1", 16 * KIB),))
    monkeypatch.setattr(levels.proc, "available_bytes", lambda: 100 * KIB)
    monkeypatch.setattr(levels, "device_s", lambda call, device_type: 0.5)
    found = [outcome(each, "levels") for each in levels.level_attempts("cpu")]
    assert [isinstance(each, Absence) for each in found] == [False, True, True]
    assert found[1].reason == "32768 bytes are more than a quarter of the memory that is free"


@pytest.mark.parametrize(
    ("size", "device_type", "n"),
    [
        (8 * KIB, "cpu", 8192),
        (16 * MIB, "cpu", 4),
        (32 * MIB, "cpu", 2),
        # Rows side by side on two cores would share the last cache.
        (33 * MIB, "cpu", 1),
        (128 * MIB, "cpu", 1),
        (4 * MIB, "cuda", 256),
        (256 * MIB, "cuda", 4),
        (4096 * MIB, "cuda", 1),
    ],
)
def test_a_call_sweeps_enough_to_hide_its_launch(size, device_type, n):
    assert levels.n_sweeps(size, CACHES, device_type) == n
    assert levels.n_sweeps(size, (), device_type) == n or device_type == "cpu"


def test_a_cpu_s_sweeps_are_of_one_set():
    sums = levels.sweeps(8 * KIB, 5, "cpu")()
    assert sums.shape == (5,)
    assert torch.equal(sums, sums[:1].expand(5))


def test_a_gpu_fills_its_multiprocessors_and_sweeps_all(monkeypatch):
    module = pytest.importorskip("peakward.kernels.ops.sweep.triton")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    on_cpu = torch.rand
    monkeypatch.setattr(torch, "rand", lambda n, device: on_cpu(n))
    monkeypatch.setattr(module, "sweep", lambda values, n, n_programs: (len(values), n, n_programs))
    assert levels.sweeps(4 * MIB, 256, "cuda")() == (MIB, 256, 132 * 8)


def test_rates_count_every_byte_read(monkeypatch):
    monkeypatch.setattr(levels.proc, "caches", lambda: (Cache("L1", 16 * KIB),))
    monkeypatch.setitem(levels.READ_BYTES, "cpu", 64 * KIB)
    read = []

    def count(call, device_type):
        read.append(call().numel())
        return 0.5

    monkeypatch.setattr(levels, "device_s", count)
    rates = [outcome(each, "levels") for each in levels.level_attempts("cpu")]
    assert [(rate.working_set_bytes, rate.level, rate.capacity_bytes) for rate in rates] == [
        (8 * KIB, "L1", 16 * KIB),
        (32 * KIB, None, None),
        (128 * KIB, "memory", None),
    ]
    assert read == [8, 1, 1]
    assert [rate.bytes_per_s for rate in rates] == [128 * KIB, 64 * KIB, 256 * KIB]


@pytest.mark.parametrize("size", [128, 8 * KIB, 64 * KIB])
def test_a_cycle_visits_every_line_once_and_returns(size):
    table = levels.cycle(size, "cpu")
    assert table.untyped_storage().nbytes() == size
    position, visited = torch.zeros(1, dtype=torch.int64), []
    for _ in range(size // 128):
        visited.append(position.item())
        reference.chase(table, position, 1)
    assert sorted(visited) == list(range(0, size, 128))
    assert position.item() == 0


def test_its_order_is_not_the_memory_s():
    steps = levels.cycle(64 * KIB, "cpu")[::16].diff()
    assert len(steps.unique()) > 100


@pytest.fixture
def chased(monkeypatch):
    """A small L1, and the loads asked for: (bytes of the table, loads)."""
    asked = []
    monkeypatch.setattr(levels.proc, "caches", lambda: (Cache("L1", 16 * KIB),))
    monkeypatch.setattr(
        levels, "_chase", lambda device_type: lambda t, p, n: asked.append((t.nbytes, n))
    )
    monkeypatch.setattr(levels, "device_s", lambda call, device_type: call() or 0.5)
    return asked


def test_a_latency_is_a_call_over_its_loads_on_a_cycle_gone_round_before(chased):
    found = [outcome(each, "latency") for each in levels.latency_attempts("cpu")]
    load_s = 0.5 / 2**18
    assert found == [
        LoadLatency(level="L1", working_set_bytes=8 * KIB, load_s=load_s),
        LoadLatency(level=None, working_set_bytes=32 * KIB, load_s=load_s),
        LoadLatency(level="memory", working_set_bytes=128 * KIB, load_s=load_s),
    ]
    assert chased == [(size * KIB, n) for size in (8, 32, 128) for n in (size * KIB // 128, 2**18)]


def test_a_set_that_would_fill_the_memory_is_not_tried_in_latency(chased, monkeypatch):
    monkeypatch.setattr(levels.proc, "available_bytes", lambda: 100 * KIB)
    found = [outcome(each, "latency") for each in levels.latency_attempts("cpu")]
    assert [isinstance(each, Absence) for each in found] == [False, True, True]


def test_without_a_compiler_there_is_none(monkeypatch):
    monkeypatch.setattr(levels.probe, "compiler", lambda: None)
    with pytest.raises(NotMeasurableError, match=r"no C\+\+ compiler on the PATH"):
        next(levels.latency_attempts("cpu"))


@pytest.mark.skipif(levels.probe.compiler() is None, reason="no C++ compiler")
def test_a_real_chain_takes_time(monkeypatch):
    monkeypatch.setattr(levels.proc, "caches", lambda: (Cache("L1", 2 * KIB),))
    monkeypatch.setattr("peakward.lab.measure.calibration.timing.TIMED_S", {"cpu": 0.0})
    (found,) = [outcome(each, "latency") for each in levels.latency_attempts("cpu")]
    assert 1e-10 < found.load_s < 1e-5
