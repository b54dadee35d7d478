"""What `tests/fuzz/traces.py` found: files that once ended in anything but a profile or a refusal."""

import json

from peakward.traces.trace import Trace


def profile(tmp_path, *events):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return Trace.open(path).profile()


def test_two_processes_without_a_call_between_them(tmp_path):
    ops = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": pid, "tid": 1, "ts": 1, "dur": 2}
        for pid in (1, 2)
    ]
    work = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 2, "dur": 3}
    found = profile(tmp_path, *ops, {**work, "args": {"device": 0, "stream": 7, "correlation": 5}})
    assert found.breakdown.together.busy_ns == 3000
