"""Cycles through a working set, and what is made of the time of following them."""

import pytest
import torch

from peakward.kernels.ops.pointer_chase import reference
from peakward.lab.measure.calibration import latency, levels
from peakward.lab.measure.calibration.attempt import NotMeasurableError, outcome
from peakward.lab.measure.proc import Cache
from peakward.records.calibration import Absence, LoadLatency

KIB = 2**10


@pytest.mark.parametrize("size", [128, 8 * KIB, 64 * KIB])
def test_a_cycle_visits_every_line_once_and_returns(size):
    table = latency.cycle(size, "cpu")
    assert table.untyped_storage().nbytes() == size
    position, visited = torch.zeros(1, dtype=torch.int64), []
    for _ in range(size // 128):
        visited.append(position.item())
        reference.chase(table, position, 1)
    assert sorted(visited) == list(range(0, size, 128))
    assert position.item() == 0


def test_its_order_is_not_the_memory_s():
    steps = latency.cycle(64 * KIB, "cpu")[::16].diff()
    assert len(steps.unique()) > 100


@pytest.fixture
def chased(monkeypatch):
    """A small L1, and the loads asked for: (bytes of the table, loads)."""
    asked = []
    monkeypatch.setattr(levels.proc, "caches", lambda: (Cache("L1", 16 * KIB),))
    monkeypatch.setattr(
        latency, "_chase", lambda device_type: lambda t, p, n: asked.append((t.nbytes, n))
    )
    monkeypatch.setattr(latency, "device_s", lambda call, device_type: call() or 0.5)
    return asked


def test_a_latency_is_a_call_over_its_loads_on_a_cycle_gone_round_before(chased):
    found = [outcome(each, "latency") for each in latency.attempts("cpu")]
    load_s = 0.5 / 2**18
    assert found == [
        LoadLatency(level="L1", working_set_bytes=8 * KIB, load_s=load_s),
        LoadLatency(level=None, working_set_bytes=32 * KIB, load_s=load_s),
        LoadLatency(level="memory", working_set_bytes=128 * KIB, load_s=load_s),
    ]
    assert chased == [(size * KIB, n) for size in (8, 32, 128) for n in (size * KIB // 128, 2**18)]


def test_a_set_that_would_fill_the_memory_is_not_tried(chased, monkeypatch):
    monkeypatch.setattr(levels.proc, "available_bytes", lambda: 100 * KIB)
    found = [outcome(each, "latency") for each in latency.attempts("cpu")]
    assert [isinstance(each, Absence) for each in found] == [False, True, True]


def test_without_a_compiler_there_is_none(monkeypatch):
    monkeypatch.setattr(latency.probe, "compiler", lambda: None)
    with pytest.raises(NotMeasurableError, match=r"no C\+\+ compiler on the PATH"):
        next(latency.attempts("cpu"))


@pytest.mark.skipif(latency.probe.compiler() is None, reason="no C++ compiler")
def test_a_real_chain_takes_time(monkeypatch):
    monkeypatch.setattr(levels.proc, "caches", lambda: (Cache("L1", 2 * KIB),))
    monkeypatch.setattr("peakward.lab.measure.calibration.timing.TIMED_S", {"cpu": 0.0})
    (found,) = [outcome(each, "latency") for each in latency.attempts("cpu")]
    assert 1e-10 < found.load_s < 1e-5
