"""A case's memory is recorded once; its snapshot is kept; what fails is said and tried again."""

import gzip
import json
import pickle

import msgspec
import pytest

from peakward.lab.measure.messages import Failed, MemoryRecorded
from peakward.models.presets import model
from peakward.records.case import ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.memory import CaseMemory, HeldTensors, MemoryMarks
from peakward.report.cases import label
from peakward.store.database import Store
from peakward.tune.memory_records import MemoryRecorder, NotRecorded

CASE = ModelCase(model=model("tiny"), workload=Workload(batch_size=1, seq_len=8), device="cpu")
EVENTS = [
    {"action": "alloc", "addr": 4096, "size": 100, "time_us": 1},
    {"action": "alloc", "addr": 8192, "size": 50, "time_us": 2},
    {"action": "free_requested", "addr": 8192, "size": 50, "time_us": 3},
]
MARKS = MemoryMarks(
    begin=1,
    end=3,
    phases=((1, "forward"),),
    modules=(),
    held=(HeldTensors(purpose="parameters", at=3, addresses=(4096,)),),
    cleared=(3, 3),
    peak_allocated_bytes=None,
)


class Hands:
    """The workers: each answer is the snapshot above, or the failure that is next."""

    def __init__(self, *failures):
        self.asked, self._failures, self.stopping = [], list(failures), False

    def record_memory(self, case, path, *, timeout_s):
        self.asked.append(case)
        failure = self._failures.pop(0) if self._failures else None
        if isinstance(failure, Exception):
            raise failure
        if failure is not None:
            return failure
        path.write_bytes(pickle.dumps({"segments": [], "device_traces": [EVENTS]}))
        return MemoryRecorded(path=str(path), marks=MARKS)

    def raise_if_stopping(self):
        if self.stopping:
            raise KeyboardInterrupt


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "a.db") as opened:
        yield opened


def test_a_recording_is_analysed_and_its_snapshot_kept(store):
    found = MemoryRecorder(Hands(), store, "here").record(CASE, timeout_s=1.0)
    assert isinstance(found, CaseMemory)
    assert store.path_of(found.snapshot).is_file()
    assert (found.peak_bytes, found.counted_peak_bytes, found.reserved_bytes) == (150, None, None)
    (peak,) = found.phases
    assert {each.name: each.n_bytes for each in peak.purposes} == {
        "parameters": 100,
        "temporaries": 50,
    }


def test_a_stored_one_is_not_made_again(store):
    hands = Hands()
    first = MemoryRecorder(hands, store, "here").record(CASE, timeout_s=1.0)
    assert MemoryRecorder(hands, store, "here").record(CASE, timeout_s=1.0) == first
    assert hands.asked == [CASE]


@pytest.mark.parametrize(
    ("failure", "reason", "interrupted"),
    [
        (Failed(status="oom", reason="too big"), "oom: too big", False),
        (
            Failed(status="crashed", reason="interrupted by Ctrl-C", ended_by="user"),
            "interrupted by Ctrl-C",
            True,
        ),
        (PeakwardError("expected a GPU, got none"), "expected a GPU, got none", False),
    ],
)
def test_a_failure_is_said_and_tried_again(store, failure, reason, interrupted):
    recorder = MemoryRecorder(Hands(failure), store, "here")
    found = recorder.record(CASE, timeout_s=1.0)
    assert isinstance(found, NotRecorded)
    assert (found.reason, found.interrupted) == (reason, interrupted)
    assert found.note == f"Memory not recorded: {label(CASE)}: {reason}."
    assert isinstance(recorder.record(CASE, timeout_s=1.0), CaseMemory)


def test_ctrl_c_twice_keeps_what_was_recorded(store):
    hands = Hands()
    hands.stopping = True
    with pytest.raises(KeyboardInterrupt):
        MemoryRecorder(hands, store, "here").record(CASE, timeout_s=1.0)
    assert store.memory(CASE, "here") is not None


STEP = {"ph": "X", "cat": "user_annotation", "name": "peakward::step", "ts": 1, "dur": 9}
TRACED = msgspec.structs.replace(MARKS, traced=(1, 3))


class OnGpu(Hands):
    """As those of a GPU, whose trace has these instants."""

    def __init__(self, *sizes):
        super().__init__()
        self._sizes = sizes

    def record_memory(self, case, path, *, timeout_s):
        found = super().record_memory(case, path, timeout_s=timeout_s)
        events = [STEP | {"pid": 1, "tid": 1}]
        for at, size in enumerate(self._sizes):
            arguments = {"Addr": 8192, "Bytes": size, "Device Id": 0}
            instant = {"ph": "i", "name": "[memory]", "ts": 2 + at, "pid": 1, "tid": 1}
            events.append(instant | {"args": arguments})
        trace = path.with_name("a.trace.json.gz")
        trace.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
        return msgspec.structs.replace(found, trace=str(trace), marks=TRACED)


def test_a_trace_of_the_step_gives_its_clock(store):
    case = msgspec.structs.replace(CASE, device="cuda")
    found = MemoryRecorder(OnGpu(512, -512), store, "here").record(case, timeout_s=1.0)
    assert found.not_joined is None
    assert store.path_of(found.clock.trace).is_file()
    (peak,) = found.clock.peaks
    assert (peak.phase, peak.at_s, peak.kernel) == ("forward", pytest.approx(1e-6), None)
    assert store.memory(case, "here") == found


def test_a_trace_that_tells_otherwise_is_not_joined(store):
    case = msgspec.structs.replace(CASE, device="cuda")
    found = MemoryRecorder(OnGpu(512), store, "here").record(case, timeout_s=1.0)
    assert found.clock is None
    assert "got 1 for 2" in found.not_joined
