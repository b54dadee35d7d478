"""Allocations that torch's profiler tells of."""

import gzip
import json

import pytest

from peakward.records.errors import PeakwardError
from peakward.traces.readers.torch_allocations import read

from .conftest import EXACT


def instant(ts, address, n_bytes, device=0, tid=7, name="[memory]"):
    arguments = {"Addr": address, "Bytes": n_bytes, "Device Id": device, "Device Type": 1}
    return {"ph": "i", "name": name, "ts": ts, "pid": 1, "tid": tid, "args": arguments}


def written(path, events):
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return path


def test_a_gpus_events_in_the_order_of_their_times(tmp_path):
    events = [
        {"ph": "X", "name": "aten::mm", "ts": 1.0, "dur": 2.0, "pid": 1, "tid": 7},
        instant(4458676522690.655, 4096, -512, tid=8),
        instant(4458676522690.001, 4096, 512),
        instant(4458676522690.002, 1, 64, device=-1),
        instant(4458676522690.003, 8192, 64, name="[other]"),
        {"ph": "i", "name": "Iteration Start: PyTorch Profiler", "ts": 1, "pid": 1, "tid": 1},
    ]
    found = read(written(tmp_path / "t.json.gz", events))
    assert found.at_ns.tolist() == [4458676522690001, 4458676522690655]
    assert found.address.tolist() == [4096, 4096]
    assert found.n_bytes.tolist() == [512, -512]
    assert found.thread == (("1", "7"), ("1", "8"))


def test_a_trace_without_any_has_none(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": []}')
    assert len(read(path).at_ns) == 0


@pytest.mark.parametrize("content", [b"", b"{}", b"[1", b"\x1f\x8b\x08broken"])
def test_what_is_no_trace_is_said(tmp_path, content):
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(PeakwardError, match="expected a trace of torch's profiler, got"):
        read(path)
    with pytest.raises(PeakwardError, match="expected a trace of torch's profiler, got"):
        read(tmp_path / "absent.json")


@pytest.mark.parametrize(("name", "n"), [("h100_bert_small", 218), ("mi300_bert_small", 234)])
def test_what_is_let_go_was_handed_out_in_real_traces(name, n):
    path = EXACT / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    found = read(path)
    assert len(found.at_ns) == n
    assert (found.at_ns[1:] >= found.at_ns[:-1]).all()
    held = {}
    for address, n_bytes in zip(found.address.tolist(), found.n_bytes.tolist(), strict=True):
        if n_bytes > 0:
            assert address not in held
            held[address] = n_bytes
        elif address in held:
            assert held.pop(address) == -n_bytes
