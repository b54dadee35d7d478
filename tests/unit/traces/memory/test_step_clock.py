"""The allocator's history joined to a trace of the same step, made by hand and from real traces."""

import gzip
import json
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from peakward.records.errors import PeakwardError
from peakward.records.memory import MemoryMarks
from peakward.traces.memory.case_memory import recorded
from peakward.traces.memory.memory import memory
from peakward.traces.memory.step_clock import check_joined, step_clock
from peakward.traces.readers import torch_allocations
from peakward.traces.trace import Trace

from .files import written

EXACT = Path(os.environ.get("PEAKWARD_TRACES", Path(__file__).parents[5] / "shared" / "traces"))
BASE = 0x7F0000000000
MARKS = MemoryMarks(
    begin=1,
    end=5,
    phases=((1, "forward"), (4, "backward")),
    modules=(),
    held=(),
    cleared=(5, 5),
    peak_allocated_bytes=None,
    traced=(1, 5),
)
# (action, address, bytes asked for, µs, thread): the first lies before the trace.
HISTORY = [
    ("alloc", BASE, 1024, 0, 7),
    ("alloc", BASE + 4096, 1000, 20, 7),
    ("alloc", BASE + 8192, 2000, 40, 7),
    ("free_requested", BASE + 4096, 1000, 70, 7),
    ("alloc", BASE + 16384, 600, 110, 8),
]


def snapshot(folder, history):
    events = [
        {"action": action, "addr": address, "size": size, "time_us": 1_000_000 + at}
        for action, address, size, at, _ in history
    ]
    return memory(written(folder, {"segments": [], "device_traces": [events]}))


def span(name, at, dur, tid=7, cat="cpu_op", pid=1, **arguments):
    return {
        "ph": "X", "cat": cat, "name": name, "ts": at, "dur": dur, "pid": pid, "tid": tid,
        "args": arguments,
    }  # fmt: skip


def instants(history, block=lambda size: -(-size // 512) * 512):
    return [
        {
            "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": at, "pid": 1, "tid": tid,
            "args": {
                "Addr": address, "Bytes": block(size) * (1 if action == "alloc" else -1),
                "Device Id": 0, "Device Type": 1,
            },
        }
        for action, address, size, at, tid in history
    ]  # fmt: skip


EVENTS = [
    span("peakward::step", 10, 140, cat="user_annotation"),
    span("peakward::forward", 12, 88, cat="user_annotation"),
    span("peakward::backward", 100, 50, cat="user_annotation"),
    span("aten::linear", 15, 30),
    span("aten::mm", 35, 9),
    span("aten::empty", 39, 2),
    span("cudaLaunchKernel", 42, 1, cat="cuda_runtime", correlation=1),
    span("aten::mm", 105, 10, tid=8),
    span("cudaLaunchKernel", 107, 1, tid=8, cat="cuda_runtime", correlation=2),
    span("gemm_kernel", 60, 90, tid=0, pid=0, cat="kernel", correlation=1, device=0, stream=7),
    span("softmax_kernel", 150, 30, tid=0, pid=0, cat="kernel", correlation=2, device=0, stream=7),
]


def traced(folder, events):
    path = folder / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return path


def clock(folder, *, history=HISTORY, seen=HISTORY[1:], marks=MARKS, events=EVENTS):
    found = snapshot(folder, history)
    path = traced(folder, [*events, *instants(seen)])
    step = recorded(found, marks, "cuda")
    read = torch_allocations.read(path)
    return step, step_clock(found, marks, step, Trace.open(path), read)


def test_peaks_have_their_time_and_what_ran_then(tmp_path):
    step, found = clock(tmp_path)
    assert [each.phase for each in step.phases] == ["forward", "backward"]
    forward, backward = (msgspec.structs.asdict(each) for each in found.peaks)
    us = pytest.approx
    assert forward == {
        "phase": "forward",
        "at_s": us(30e-6),
        # aten::empty makes room for it.
        "operator": "aten::mm",
        "kernel": None,
        "category": None,
        "queued_s": None,
        # Nothing was launched yet.
        "host_ahead_s": 0.0,
    }
    assert backward == {
        "phase": "backward",
        "at_s": us(100e-6),
        "operator": "aten::mm",
        "kernel": "gemm_kernel",
        "category": "matmul",
        "queued_s": us(18e-6),
        # The kernel launched before it ends at 150, the one launched at 107 at 180: both at 110.
        "host_ahead_s": us(70e-6),
    }


def test_the_timeline_has_its_times_and_phases_their_kernels(tmp_path):
    step, found = clock(tmp_path)
    assert len(found.times_s) == len(step.timeline)
    assert found.times_s[0] == 0.0
    assert list(found.times_s) == sorted(found.times_s)
    assert found.times_s[-1] == pytest.approx(100e-6)
    assert [(each.phase, each.begin_s, each.end_s) for each in found.kernels] == [
        ("forward", pytest.approx(50e-6), pytest.approx(140e-6)),
        ("backward", pytest.approx(140e-6), pytest.approx(170e-6)),
    ]
    assert found.trace == "trace.json.gz"


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (HISTORY, "got 5 for 4"),
        (HISTORY[2:], "got 3 for 4"),
        (
            [*HISTORY[1:4], ("alloc", BASE + 512, 600, 110, 8)],
            f"expected allocation or free 3 of the trace to be the history's .* at {BASE + 512:#x}",
        ),
        ([("free_requested", *HISTORY[1][1:]), *HISTORY[2:]], "free 0 .* got -1,024 bytes"),
        ([*HISTORY[1:4], ("alloc", BASE + 16384, 500, 110, 8)], "600 bytes .* got 512 bytes"),
        ([*HISTORY[1:4], ("alloc", BASE + 16384, 2 << 20, 110, 8)], "got 2,097,152 bytes"),
    ],
)
def test_what_differs_is_not_joined(tmp_path, seen, said):
    with pytest.raises(PeakwardError, match=said):
        clock(tmp_path, seen=seen)


def test_a_step_without_its_range_or_untraced_is_not_joined(tmp_path):
    with pytest.raises(PeakwardError, match="expected the range of a step"):
        clock(tmp_path, events=EVENTS[1:])
    with pytest.raises(PeakwardError, match="expected a step that was traced"):
        clock(tmp_path, marks=msgspec.structs.replace(MARKS, traced=None))


def kernels_launched_by(events, at_us):
    """Work on the GPU whose call of the runtime or driver began by then."""
    calls = {
        each["args"]["correlation"]: each["ts"]
        for each in events
        if str(each.get("cat")).endswith(("_runtime", "_driver"))
        and "correlation" in each.get("args", {})
    }
    work = [each for each in events if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    return [each for each in work if calls[each["args"]["correlation"]] <= at_us]


@pytest.mark.parametrize("name", ["h100_bert_small", "mi300_bert_small"])
def test_a_real_trace_joins_the_history_that_it_tells_of(tmp_path, name):
    """Of an inference under the profiler: what its allocator did, written as torch's history would."""
    path = EXACT / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    seen = torch_allocations.read(path)
    n, begin = len(seen.at_ns), int(seen.at_ns[0]) - 1000
    history = [
        ("alloc" if size > 0 else "free_requested", address, abs(size) - 100, at // 1000, 7)
        for address, size, at in zip(
            seen.address.tolist(), seen.n_bytes.tolist(), seen.at_ns.tolist(), strict=True
        )
    ]
    found = snapshot(tmp_path, history)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    tid = next(each["tid"] for each in events if each.get("name") == "[memory]")
    pid = next(each["pid"] for each in events if each.get("name") == "[memory]")
    step = span("peakward::step", begin / 1000, 1e6, tid=tid, pid=pid, cat="user_annotation")
    trace = Trace.open(traced(tmp_path, [*events, step]))
    marks = msgspec.structs.replace(
        MARKS, begin=0, end=n, phases=((0, "forward"),), cleared=(n, n), traced=(0, n)
    )
    joined = step_clock(found, marks, told := recorded(found, marks, "cuda"), trace, seen)
    (peak,) = joined.peaks
    position = told.phases[0].event
    held = np.cumsum(seen.n_bytes)
    assert held[position - 1] == held.max() or position == 0
    assert peak.at_s == pytest.approx((int(seen.at_ns[position - 1]) - begin) * 1e-9, abs=2e-9)
    assert peak.operator is not None and peak.operator.startswith("aten::")
    at = begin + round(peak.at_s * 1e9)
    left = [each["ts"] + each["dur"] for each in kernels_launched_by(events, at / 1000)]
    assert peak.host_ahead_s == pytest.approx(max(0.0, max(left) - at / 1000) * 1e-6, abs=1e-8)
    times = np.array(joined.times_s)
    assert (np.diff(times) >= 0).all()
    (forward,) = joined.kernels
    assert 0 < forward.begin_s < forward.end_s
    with pytest.raises(PeakwardError, match="expected allocation or free"):
        events_of = found.devices[0].events
        order = np.r_[1, 0, np.arange(2, n)]
        check_joined(events_of.of(order), seen)
