"""Every allocation of a stretch is recorded, and marks stand between them."""

import pytest
import torch

from peakward.lab.measure.allocations import CpuRecording, recording
from peakward.traces.memory.lifetimes import lifetimes
from peakward.traces.memory.snapshot_file import read
from peakward.traces.memory.table import Action


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.pickle.gz"


def test_allocations_and_frees_lie_between_the_marks(path):
    with CpuRecording() as recorded:
        recorded.mark()
        kept = torch.empty(1000)
        recorded.mark()
        gone = torch.empty(500)
        recorded.mark()
        del gone
        recorded.mark()
        recorded.stop()
    recorded.write(path)
    assert recorded.positions() == (0, 1, 2, 3)
    events = read(path).events
    assert events.action.tolist() == [Action.ALLOC, Action.ALLOC, Action.FREE_REQUESTED]
    assert events.n_bytes.tolist() == [4000, 2000, 2000]
    assert events.address[0] == kept.untyped_storage().data_ptr()
    found = lifetimes(events, ())
    assert found.alive(2).tolist() == [True, True]
    assert sorted(found.freed.tolist()) == [3, 4]


def test_a_recording_that_is_not_stopped_ends_with_its_block():
    with pytest.raises(ValueError, match="planted"), CpuRecording() as recorded:
        recorded.mark()
        raise ValueError("planted")
    assert not torch.autograd._profiler_enabled()
    assert recorded.positions() == ()


def test_a_cpu_is_recorded_by_the_profiler():
    assert isinstance(recording("cpu"), CpuRecording)


class Allocator:
    """Stands for CUDA's: its counters, and what its history was asked for."""

    def __init__(self, monkeypatch):
        self.allocated, self.freed, self.asked = 7, 5, []
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", self._record)
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"segments": []})
        monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", self._stats)

    def _record(self, enabled="all", **options):
        self.asked.append(enabled)

    def _stats(self):
        return {"allocation": {"all": {"allocated": self.allocated, "freed": self.freed}}}


def test_marks_on_a_gpu_are_its_counters_since_the_beginning(monkeypatch, path):
    allocator = Allocator(monkeypatch)
    with recording("cuda") as recorded:
        recorded.mark()
        allocator.allocated += 3
        recorded.mark()
        allocator.freed += 2
        recorded.mark()
        recorded.stop()
    recorded.write(path)
    assert recorded.positions() == (0, 3, 5)
    assert allocator.asked[0] == "all"
    assert set(allocator.asked[1:]) == {None}
    assert read(path).segments == ()


def test_a_gpus_history_ends_with_a_failure(monkeypatch):
    allocator = Allocator(monkeypatch)
    with pytest.raises(ValueError, match="planted"), recording("cuda"):
        raise ValueError("planted")
    assert allocator.asked == ["all", None]
