"""Work by Peakward's ranges, as records."""

import pytest

from peakward.traces.trace import Trace

from .own import COMPILED, CPU_ATTENTION, CPU_DECODER
from .rows import Rows


def total(found, name, direction=None):
    return sum(
        each.total_ns for each in found if each.name == name and direction in (None, each.direction)
    )


def test_a_range_holds_the_ranges_in_it():
    builder = Rows().range("peakward::block 10", 0, 50).range("peakward::block 2", 60, 70)
    builder.range("peakward::attention", 5, 30).range("peakward::attention.softmax", 10, 20)
    builder.launch("softmax", 12, gpu=(100, 101)).launch("gemm", 25, gpu=(102, 104))
    builder.launch("add", 40, gpu=(110, 114)).launch("gemm", 65, gpu=(120, 128))
    found = Trace(builder.table()[0]).ranges()
    assert [(each.name, each.category, each.n, each.total_ns) for each in found] == [
        ("peakward::attention", "matmul", 1, 2),
        ("peakward::attention", "softmax", 1, 1),
        ("peakward::attention.softmax", "softmax", 1, 1),
        ("peakward::block 2", "matmul", 1, 8),
        ("peakward::block 10", "elementwise", 1, 4),
        ("peakward::block 10", "matmul", 1, 2),
        ("peakward::block 10", "softmax", 1, 1),
    ]


@pytest.mark.parametrize("path", [CPU_ATTENTION, CPU_DECODER])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_parts_lie_in_the_attention(path, direction):
    found = Trace.open(path).profile().ranges
    whole = total(found, "peakward::attention", direction)
    parts = [
        total(found, f"peakward::attention.{part}", direction)
        for part in ("scores", "softmax", "values")
    ]
    assert all(parts)
    assert whole >= sum(parts) > 0.9 * whole


def test_blocks_hold_all_attention_of_a_decoder():
    found = Trace.open(CPU_DECODER).profile().ranges
    blocks = total(found, "peakward::block 0"), total(found, "peakward::block 1")
    assert min(blocks) > 0
    assert sum(blocks) > total(found, "peakward::attention")


def test_a_trace_without_our_ranges_has_none():
    assert Trace.open(COMPILED).profile().ranges == ()
