"""A file's format is told by what it holds."""

import gzip
import json
import os

import pytest

from peakward.records.errors import PeakwardError
from peakward.traces.memory import snapshot_file
from peakward.traces.reading import read
from peakward.traces.trace import Trace

from .own import GRAPHS


def test_a_name_without_its_suffix_is_no_obstacle(tmp_path):
    for data in (GRAPHS.read_bytes(), gzip.decompress(GRAPHS.read_bytes())):
        path = tmp_path / "trace"
        path.write_bytes(data)
        assert len(read(path).gpu) == len(read(GRAPHS).gpu)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "which is empty"),
        (b"\x7fELF\x02\x01", "neither JSON nor SQLite"),
        (b"\x89PNG\r\n", "neither JSON nor SQLite"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, data, said):
    path = tmp_path / "some\x1b[2Jfile"
    path.write_bytes(data)
    with pytest.raises(PeakwardError, match=said) as refused:
        read(path)
    assert "\x1b" not in str(refused.value)


def test_a_folder_and_nothing_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(PeakwardError, match="expected a readable trace"):
            read(path)


@pytest.mark.parametrize("read_one", [read, snapshot_file.read])
def test_a_pipe_is_refused_before_it_is_waited_for(tmp_path, read_one):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, b" " * 8192)
    with pytest.raises(PeakwardError, match="is a pipe or a device: write what it gives to a file"):
        read_one(path)
    os.close(writer)


def test_a_damaged_files_name_is_told_without_escape_sequences(tmp_path):
    path = tmp_path / "some\x1b[2Jfile"
    path.write_text('{"traceEvents": [1]}')
    with pytest.raises(PeakwardError, match="none is one") as refused:
        read(path)
    assert "\x1b" not in str(refused.value)


def test_argument_types_and_sizes_are_made_fit_for_a_terminal(tmp_path):
    odd = "\x1b[2J\u202e"
    shapes = {"Input Dims": [[8, 8], [8, 8], [odd]], "Input type": [odd, "float", "float"]}
    ids = {"correlation": 1, "device": 0, "stream": 7}
    events = [
        _event("cpu_op", "aten::mm", 0, 10, shapes),
        _event("cuda_runtime", "cudaLaunchKernel", 2, 4, ids),
        _event("kernel", "gemm", 20, 9, ids),
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (found,) = Trace.open(path).operators()
    assert found.dims == r"8×8, 8×8, \x1b[2J\u202e"
    assert found.dtype == r"\x1b[2J\u202e"


def _event(category, name, ts, dur, args):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": ts,
        "dur": dur,
        "pid": 1,
        "tid": 1,
        "args": args,
    }
