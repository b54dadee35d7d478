"""Alike operators are one, sums count each call, and a graph survives its JSON."""

import msgspec
import pytest

from peakward.records.codec import from_json, to_json
from peakward.records.op_graph import ITEM_BYTES, Operand, Operator, OpGraph, Totals

X = Operand(shape=(4, 6), dtype="bfloat16")
MM = Operator(
    name="aten.mm",
    phase="forward",
    module="blocks.*.attention.qkv",
    inputs=(X, Operand(shape=(6, 3), dtype="bfloat16")),
    outputs=(Operand(shape=(4, 3), dtype="bfloat16"),),
    flops=2 * 4 * 6 * 3,
    bytes_read=2 * (24 + 18),
    bytes_written=2 * 12,
)
CAST = Operator(
    name="aten._to_copy",
    phase="backward",
    module=None,
    inputs=(X,),
    outputs=(Operand(shape=(4, 6), dtype="float32"),),
    flops=0,
    bytes_read=48,
    bytes_written=96,
)


@pytest.mark.parametrize(
    ("shape", "dtype", "count", "n_bytes"),
    [
        ((4, 6), "bfloat16", 1, 48),
        ((), "float32", 1, 4),
        ((), "float32", 291, 4 * 291),
        ((0, 5), "int64", 1, 0),
        ((3,), "bool", 2, 6),
    ],
)
def test_bytes_of_an_operand(shape, dtype, count, n_bytes):
    assert Operand(shape=shape, dtype=dtype, count=count).n_bytes == n_bytes


def test_alike_operators_become_one_and_counts_add_up():
    thrice = msgspec.structs.replace(MM, count=3)
    graph = OpGraph.of([MM, CAST, thrice, MM])
    assert graph.operators == (msgspec.structs.replace(MM, count=5), CAST)
    assert OpGraph.of(graph.operators) == graph


@pytest.mark.parametrize(
    "change",
    [
        {"name": "aten.bmm"},
        {"phase": "backward"},
        {"module": None},
        {"inputs": (X,)},
        {"outputs": (X,)},
        {"flops": 1},
        {"bytes_read": 1},
        {"bytes_written": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_operators_that_differ_in_anything_stay_apart(change):
    assert len(OpGraph.of([MM, msgspec.structs.replace(MM, **change)]).operators) == 2


def test_sums_count_each_call():
    graph = OpGraph.of([MM] * 3 + [CAST] * 2)
    by_phase = graph.totals(lambda each: each.phase)
    assert by_phase == {
        "forward": Totals(3, 3 * MM.flops, 3 * MM.bytes_read, 3 * MM.bytes_written),
        "backward": Totals(2, 0, 96, 192),
    }
    (whole,) = graph.totals(lambda each: None).values()
    assert whole == tuple(map(sum, zip(*by_phase.values(), strict=True)))
    assert OpGraph.of([]).totals(lambda each: each.name) == {}


def test_a_graph_survives_its_json():
    graph = OpGraph.of([MM, CAST, MM])
    assert from_json(to_json(graph), OpGraph) == graph


def test_bytes_of_an_element_are_those_of_torch():
    torch = pytest.importorskip("torch")
    assert {name: getattr(torch, name).itemsize for name in ITEM_BYTES} == ITEM_BYTES
