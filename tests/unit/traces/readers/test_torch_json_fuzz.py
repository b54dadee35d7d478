"""Events of every kind in every layout come back exactly; damaged files give one clear error."""

import gzip
import json
import random
import re
import tempfile
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.records.errors import PeakwardError
from peakward.traces.readers import torch_json
from peakward.traces.readers.torch_json import read
from peakward.traces.table import NONE, GpuKind, HostKind

KINDS = {
    "kernel": GpuKind.KERNEL,
    "gpu_memset": GpuKind.SET,
    "cpu_op": HostKind.OP,
    "cuda_runtime": HostKind.CALL,
    "user_annotation": HostKind.RANGE,
    "python_function": HostKind.PYTHON,
}
NAMES = st.text(alphabet='ab"\\{}[],: \n\u20ac', max_size=12) | st.sampled_from(
    ['}, {"ph": "X", "ts": 1', '"}]', "},{", '\\"}, {', "]}"]
)
RECENT_NS = st.integers(0, 2**43 * 999)
SINCE_1970_NS = st.integers(1_712_195_495_505_582_988, 1_712_195_495_999_999_999)


def event(times_ns):
    return st.fixed_dictionaries(
        {
            "cat": st.sampled_from(sorted(KINDS)),
            "name": NAMES,
            "start_ns": times_ns,
            "duration_ns": st.integers(0, 10**12),
            "correlation": st.integers(0, 2**40),
            "nested": st.lists(st.fixed_dictionaries({"n": NAMES}), max_size=2),
        }
    )


events = st.lists(event(RECENT_NS), max_size=30) | st.lists(event(SINCE_1970_NS), max_size=10)


def us(ns: int) -> str:
    return f"@{ns // 1000}.{ns % 1000:03}@"


def document(rows, layout) -> bytes:
    """The trace, with flows between its events and metadata on both sides."""
    written = []
    for row in rows:
        args = {
            "nested": row["nested"],
            "correlation": row["correlation"],
            "device": 1,
            "stream": 2,
        }
        written.append(
            {"ph": "X", "cat": row["cat"], "name": row["name"], "pid": 1, "tid": 2}
            | {"ts": us(row["start_ns"]), "dur": us(row["duration_ns"]), "args": args}
        )
        written.append({"ph": "s", "id": 1, "ts": us(row["start_ns"]), "cat": "ac2g"})
    before, after = {"deviceProperties": [{"id": 0}, {"id": 1}]}, {"more": [{}, {}], "x": "}, {"}
    text = json.dumps(before | {"traceEvents": written} | after, **layout)
    return re.sub('"@([^@"]*)@"', r"\1", text).encode()


layouts = st.fixed_dictionaries(
    {
        "indent": st.sampled_from([None, None, 0, 2]),
        "separators": st.sampled_from([(",", ":"), (", ", ": "), (" ,\n\t", " : ")]),
        "ensure_ascii": st.booleans(),
    }
)


def read_bytes(data: bytes, piece_bytes: int = 1 << 19):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        path.write_bytes(data)
        with patch.object(torch_json, "PIECE_BYTES", piece_bytes):
            return read(path)


@pytest.mark.parametrize("piece_bytes", [1, 200, 385, 462, 578, 1000, 1 << 19])
def test_events_of_one_start_keep_the_file_s_order_wherever_it_is_cut(piece_bytes):
    """A call among operators: categories are decoded apart, and must not be told apart by that."""
    plain = {"name": "", "start_ns": 0, "correlation": 0, "nested": []}
    categories = ["cpu_op", "kernel", "cuda_runtime", "gpu_memset", "cpu_op"] * 4
    rows = [plain | {"cat": cat, "duration_ns": n} for n, cat in enumerate(categories)]
    table = read_bytes(document(rows, {"separators": (",", ":")}), piece_bytes)
    for columns, kind in ((table.gpu, GpuKind), (table.host, HostKind)):
        expected = [row["duration_ns"] for row in rows if isinstance(KINDS[row["cat"]], kind)]
        assert columns.duration_ns.tolist() == expected


@given(events, layouts, st.integers(1, 3000), st.booleans())
def test_events_come_back_exactly(rows, layout, piece_bytes, compressed):
    data = document(rows, layout)
    table = read_bytes(gzip.compress(data, 1) if compressed else data, piece_bytes)
    assert table.limits == ()
    assert len(table.devices) == 2
    for columns, kind in ((table.gpu, GpuKind), (table.host, HostKind)):
        wanted = sorted(
            (row for row in rows if isinstance(KINDS[row["cat"]], kind)),
            key=lambda row: row["start_ns"],
        )
        assert columns.start_ns.tolist() == [row["start_ns"] for row in wanted]
        assert columns.duration_ns.tolist() == [row["duration_ns"] for row in wanted]
        assert columns.kind.tolist() == [KINDS[row["cat"]] for row in wanted]
        assert [table.names[each] for each in columns.name] == [row["name"] for row in wanted]
        ids = [
            row["correlation"] if row["cat"] in ("kernel", "gpu_memset", "cuda_runtime") else NONE
            for row in wanted
        ]
        assert columns.correlation.tolist() == ids


def gives_a_table_or_a_clear_error(data: bytes) -> None:
    try:
        read_bytes(data, 512)
    except PeakwardError as error:
        assert "expected" in str(error).lower()
        assert "\n" not in str(error)


@given(st.binary(max_size=300), st.sampled_from([b"", b"{", b"[", b'{"traceEvents": [']))
def test_any_bytes(data, before):
    gives_a_table_or_a_clear_error(before + data)
    gives_a_table_or_a_clear_error(gzip.compress(before + data, 1))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
odd_events = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            key: json_values | st.just(usual)
            for key, usual in {
                "ph": "X",
                "cat": "cpu_op",
                "name": "n",
                "ts": 1,
                "dur": 1,
                "pid": 1,
                "tid": 1,
                "args": {"stream": 1},
            }.items()
        },
    )
    | json_values,
    max_size=8,
)


@given(
    odd_events,
    st.dictionaries(st.sampled_from(["deviceProperties", "distributedInfo"]), json_values),
)
def test_values_of_any_type(rows, metadata):
    gives_a_table_or_a_clear_error(json.dumps(metadata | {"traceEvents": rows}).encode())


@cache
def recording() -> bytes:
    root = Path(__file__).parents[4]
    path = root / "tests" / "data" / "traces" / "h200_decoder_compiled.json.gz"
    return gzip.decompress(path.read_bytes())


@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(0, 10**6), st.sampled_from([1, 2, 30]))
def test_damaged_recordings(draw, start, n_changes):
    own_text = recording()
    begin = start % (len(own_text) - 20_000)
    data = bytearray(own_text[:8_000] + own_text[begin : begin + 8_000] + own_text[-4_000:])
    for _ in range(n_changes):
        damage(data, draw)
    gives_a_table_or_a_clear_error(bytes(data))


def damage(data: bytearray, draw: random.Random) -> None:
    at = draw.randrange(len(data))
    what = draw.randrange(3)
    if what == 0:
        data[at] = draw.choice(b'"\\{}[],:0e.-x\x00\xff')
    elif what == 1:
        del data[at : at + draw.randrange(200)]
    else:
        data[at:at] = data[draw.randrange(len(data)) :][:200]
