"""A second process gives the same table, and where it cannot, the first one does alone."""

import gzip
import json
import subprocess
from dataclasses import fields
from io import BytesIO
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.records.errors import PeakwardError
from peakward.traces.readers import torch_json, torch_second
from peakward.traces.readers.torch_json import read
from peakward.traces.readers.torch_second import Truncated, gunzipped, is_gzip, plain


@pytest.fixture(autouse=True)
def started():
    """The processes that were started; small files count as large, one core as two."""
    found = []

    class Noted(subprocess.Popen):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            found.append(self)

    with (
        patch.multiple(torch_second, MIN_BYTES=1, _HEAD_START_BYTES=0, _n_cores=lambda: 2),
        patch.object(torch_json, "PIECE_BYTES", 500),
        patch.object(torch_second.subprocess, "Popen", Noted),
    ):
        yield found
    assert all(each.returncode is not None for each in found)


def events(n, **more):
    kinds = ("cpu_op", "cuda_runtime", "kernel")
    return [
        {"ph": "X", "cat": kinds[i % 3], "name": f"op {i % 7}", "pid": i % 2, "tid": i % 5}
        | {"ts": 1000 - i, "dur": 1, "args": {"correlation": i, "Input Dims": [[i % 4]]} | more}
        for i in range(n)
    ] + [{"ph": "M", "name": "thread_name", "pid": 0, "tid": 3, "args": {"name": "last"}}]


def same(one, other):
    for columns in ("gpu", "host"):
        for field in fields(getattr(one, columns)):
            a, b = (getattr(getattr(each, columns), field.name) for each in (one, other))
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    for name in ("names", "shapes", "processes", "threads", "devices", "epoch_ns", "limits"):
        assert getattr(one, name) == getattr(other, name)


DESCRIBED = [
    each | {"args": {"Collective name": f"c{at % 3}", "Process Group Name": "0", "Seq": at}}
    for at, each in enumerate(events(98))
]
"""Kernels of collectives among others."""


@pytest.mark.parametrize("rows", [events(99), [*events(99), {"ph": "X"}, {"ts": -1}], DESCRIBED])
def test_the_same_table(write, started, rows):
    path = write({"traceEvents": rows, "baseTimeNanoseconds": 5, "deviceProperties": [{"id": 1}]})
    same(read(path), read(path, max_processes=1))
    assert [each.returncode for each in started] == [0]


def test_its_half_begins_in_an_argument(write, started):
    path = write(events(2, nested=[{"ph": 1}] * 9999))
    same(read(path), read(path, max_processes=1))
    assert len(started) == 1


@pytest.mark.parametrize(
    "odd",
    [{"ph": "B", "name": "b", "ts": 1}, {"ph": "X", "name": "x", "cat": "cpu_op", "pid": 2**80}],
)
def test_what_it_cannot_send(write, started, odd):
    path = write([*events(99), {"ts": 1, "cat": "cpu_op"} | odd])
    same(read(path), read(path, max_processes=1))
    assert [each.returncode for each in started] == [1]


def test_it_cannot_start(write):
    path = write(events(99))
    with patch.object(torch_second.subprocess, "Popen", side_effect=OSError):
        same(read(path), read(path, max_processes=1))


def test_the_array_ends_in_the_first_half(write, started):
    path = write({"traceEvents": events(9), "more": [{"ph": 1}] * 9999})
    same(read(path), read(path, max_processes=1))
    assert len(started) == 1


def test_a_cut_in_the_second_half(write, started):
    text = json.dumps(events(99))
    with pytest.raises(PeakwardError, match="is cut off after 99 events"):
        read(write(text[:-30]))
    assert len(started) == 1


@given(st.lists(st.binary(max_size=300), min_size=1), st.integers(1, 100), st.integers(0, 20))
def test_members_of_gzip(texts, n_bytes, n_zeros):
    data = b"".join(gzip.compress(text) + bytes(n_zeros) for text in texts)
    pieces = list(gunzipped(BytesIO(data), n_bytes))
    assert b"".join(pieces) == b"".join(texts)
    assert all(len(piece) == n_bytes for piece in pieces[:-1])


def test_cut_gzip():
    data = gzip.compress(bytes(range(256)))
    for end in range(len(data)):
        with pytest.raises(Truncated):
            list(gunzipped(BytesIO(data[:end]), 10))


@given(st.binary(), st.integers(1, 100), st.integers(0, 99))
def test_plain_up_to_a_stop(data, n_bytes, stop):
    file = BytesIO(data)
    assert b"".join(plain(file, n_bytes, stop)) == data[:stop]
    assert b"".join(plain(file, n_bytes)) == data[stop:]


def test_gzip_is_known_by_its_start():
    file = BytesIO(gzip.compress(b""))
    assert is_gzip(file)
    assert file.tell() == 0
    assert not is_gzip(BytesIO(b"{}"))
