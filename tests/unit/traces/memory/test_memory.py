"""`pw.memory`: a snapshot's report, and what it lacks."""

import pytest

import peakward as pw
from peakward.records import codec
from peakward.records.errors import PeakwardError
from peakward.records.memory_snapshot import MemoryReport
from peakward.traces.memory import device_memory

from .allocator import busy
from .files import REAL, real, written


@pytest.mark.parametrize("name", REAL)
def test_the_report_of_a_recording_is_a_record(name):
    report = pw.memory(real(name)).report()
    assert codec.from_json(codec.to_json(report), MemoryReport) == report


def test_what_was_before_the_recording_is_said():
    (said,) = pw.memory(str(real("late"))).report().incomplete
    assert "568.1 MiB were allocated before the recording" in said
    assert pw.memory(real("train")).report().incomplete == ()


def test_stacks_that_were_not_recorded_are_said(tmp_path):
    value = busy(2, 50).snapshot()
    for each in value["device_traces"][0]:
        del each["frames"]
    report = pw.memory(written(tmp_path, value)).report()
    assert any("no event has a stack" in each for each in report.incomplete)
    assert all(each.source is None for each in report.devices[0].peak.holders)


def test_sizes_that_may_be_larger_are_said(tmp_path):
    made = busy(4, 200)
    for since in range(len(made.events)):
        report = pw.memory(written(tmp_path, made.snapshot(since))).report()
        if report.devices[0].peak and report.devices[0].peak.uncertain_bytes:
            assert any("more may have been allocated" in each for each in report.incomplete)
            return
    raise AssertionError("no ring of them began before a large block was freed")


def test_devices_are_told_apart(tmp_path):
    one, two = busy(1, 60).snapshot(), busy(2, 60).snapshot()
    for each in two["segments"]:
        each["device"] = 1
    value = one | {
        "segments": one["segments"] + two["segments"],
        "device_traces": [*one["device_traces"], *two["device_traces"], []],
    }
    found = pw.memory(written(tmp_path, value)).report()
    assert [each.device for each in found.devices] == [0, 1]
    assert [each.end.allocated_bytes for each in found.devices] == [
        busy(1, 60).held()[0],
        busy(2, 60).held()[0],
    ]


def test_evidence_names_the_rules_that_were_used():
    assert [each.partition(":")[0] for each in pw.memory(real("oom")).report().evidence] == [
        "temporaries",
        "untold",
    ]
    assert any("autograd runs it on" in each for each in pw.memory(real("train")).report().evidence)
    assert not any(
        "autograd runs it on" in each for each in pw.memory(real("allstacks")).report().evidence
    )


def test_of_many_times_that_memory_ran_out_the_last_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(device_memory, "MOST_OOMS", 2)
    value = busy(2, 50).snapshot()
    (trace,) = value["device_traces"]
    last = trace[-1]["time_us"]
    for n in range(3):
        trace.append({"action": "oom", "size": n + 1, "device_free": 0, "time_us": last + n})
    report = pw.memory(written(tmp_path, value)).report()
    assert [each.needed_bytes for each in report.devices[0].ooms] == [2, 3]
    assert any("of 3 times that memory ran out the last 2" in each for each in report.incomplete)


def test_too_little_memory_to_work_it_out_is_said(monkeypatch):
    def full(*_arguments):
        raise MemoryError

    found = pw.memory(real("train"))
    monkeypatch.setattr(device_memory, "lifetimes", full)
    with pytest.raises(PeakwardError, match="expected memory to work out"):
        found.report()
