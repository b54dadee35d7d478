"""Files that would fill the memory stop with one clear error."""

import gzip
import json
from unittest.mock import patch

import pytest

from peakward.records.errors import PeakwardError
from peakward.traces.readers import torch_gather, torch_json
from peakward.traces.readers.torch_json import read


@pytest.fixture(autouse=True)
def small():
    """Limits of 1 MiB instead of 64."""
    with (
        patch.object(torch_gather, "MAX_EVENT_BYTES", 1 << 20),
        patch.object(torch_json, "MAX_BYTES", 1 << 20),
        patch.object(torch_json, "PIECE_BYTES", 1 << 16),
    ):
        yield


@pytest.mark.parametrize(
    ("before", "filler", "message"),
    [
        (b"", b" ", "got none in 1 MiB"),
        (b"{", b" ", "got none in 1 MiB"),
        (b'{"a": "', b"x", "got none in 1 MiB"),
        (b'{"a": "', b'\\"traceEvents\\": [', "got none in 1 MiB"),
        (b'{"a": [', b'{"traceEvents": []},', "got none in 1 MiB"),
        (b'{"traceEvents": [', b" ", "got one of more than 1 MiB after 0 events"),
        (b'{"traceEvents": [{"ph": "s"}, ', b"\n", "got one of more than 1 MiB after 1 events"),
        (b'{"traceEvents": [{"ph": "s"}, {"a": "', b"x", "more than 1 MiB after 1 events"),
        (b'{"traceEvents": [{"ph": "s"}, {"a": "', b"}, {", "more than 1 MiB after 1 events"),
        (b'{"traceEvents": [', b"[", "got one of more than 1 MiB after 0 events"),
        (b'{"traceEvents": [{"ph": "s"}]', b" ", "after the 1 events, got more than 1 MiB"),
        (b'{"traceEvents": [{"ph": "s"}], "a": "', b"x", "after the 1 events, got more than 1 MiB"),
        (b"[]", b"\n", "after the 0 events, got more than 1 MiB"),
    ],
)
def test_bombs(write, before, filler, message):
    bomb = write(before + filler * (5 * (1 << 20) // len(filler)), "bomb.json.gz")
    with pytest.raises(PeakwardError, match=message):
        read(bomb)


def test_a_large_event_that_is_one(write):
    rows = [{"ph": "X", "name": "x" * 900_000, "cat": "cpu_op", "ts": 1}, {"ph": "s"}]
    assert len(read(write(rows)).host) == 1


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_columns_that_do_not_fit(write, name):
    rows = [{"ph": "X", "name": "x", "cat": "cpu_op", "ts": 1}] * 20_000
    path = write(rows, name)
    with (
        patch.object(torch_json, "free_bytes", lambda: 1_000_000),
        pytest.raises(PeakwardError) as caught,
    ):
        read(path)
    assert "expected a trace whose columns fit in half of the free memory, got" in str(caught.value)
    assert " events, 0.00 GiB, in " in str(caught.value)
    assert "% of the file: record fewer steps" in str(caught.value)


def test_names_count_too(write):
    rows = [{"ph": "X", "name": f"{i:09}" * 99, "cat": "cpu_op", "ts": 1} for i in range(2000)]
    with (
        patch.object(torch_json, "free_bytes", lambda: 2_000_000),
        pytest.raises(PeakwardError, match="fit in half of the free memory"),
    ):
        read(write(rows))


def test_out_of_memory_is_said(write):
    with (
        patch.object(torch_json, "table", side_effect=MemoryError),
        pytest.raises(PeakwardError, match="fit in half of the free memory"),
    ):
        read(write(gzip.compress(json.dumps([{"ph": "s"}]).encode())))
