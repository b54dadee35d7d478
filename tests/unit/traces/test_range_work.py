"""Work by Peakward's ranges, as records."""

import numpy as np
import pytest

from peakward.traces.host_work import operator_rows, with_host_work
from peakward.traces.phase_names import PhaseCode
from peakward.traces.range_work import PartDirection, parts
from peakward.traces.reading import read
from peakward.traces.table import NONE
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
    assert {each.direction for each in found} == {"forward"}


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


NAMES = ("attention", "softmax", "other")
FORWARD, BACKWARD = PartDirection.FORWARD, PartDirection.BACKWARD


def told(table, launches, names=NAMES):
    found = parts(table, launches, names)
    kernels = [table.names[name] for name in table.gpu.name]
    ranges = [None if name == NONE else table.names[name] for name in found.name]
    return dict(zip(kernels, zip(ranges, found.direction.tolist(), strict=True), strict=True))


def forward():
    """Ranges `attention` [0, 50) with `softmax` [20, 40) in it; numbers 3 and 4 make nodes."""
    builder = Rows().range("attention", 0, 50).range("softmax", 20, 40)
    builder.op("aten::mm", 1, 10, sequence=3).launch("mm", 5, gpu=(105, 110))
    # Makes no node: the number that it carries is the next operator's.
    builder.op("aten::arange", 15, 18, sequence=4)
    builder.op("aten::_softmax", 21, 30, sequence=4).launch("softmax", 25, gpu=(125, 130))
    return builder


@pytest.mark.parametrize("thread", ["main", "autograd"])
def test_backward_work_is_for_the_range_whose_gradient_it_computes(thread):
    builder = forward()
    builder.op("SoftmaxBackward0", 60, 70, thread, sequence=4, backward=True)
    builder.launch("of softmax", 65, gpu=(165, 170), thread=thread)
    builder.op("MmBackward0", 70, 80, thread, sequence=3, backward=True)
    builder.op("aten::mm", 72, 78, thread)
    builder.launch("of mm", 75, gpu=(175, 180), thread=thread)
    assert told(*builder.table()) == {
        "mm": ("attention", FORWARD),
        "softmax": ("softmax", FORWARD),
        "of softmax": ("softmax", BACKWARD),
        "of mm": ("attention", BACKWARD),
    }


def test_numbers_may_be_of_any_size():
    largest = 2**63 - 1
    builder = Rows().range("attention", 0, 50).op("aten::mm", 1, 10, "second", sequence=0)
    builder.op("aten::mm", 1, 10, sequence=largest).op("aten::mm", 11, 20, sequence=7)
    builder.op("MmBackward0", 60, 70, sequence=largest, backward=True)
    builder.launch("of mm", 65, gpu=(165, 170))
    assert told(*builder.table()) == {"of mm": ("attention", BACKWARD)}


def test_other_names_other_parts():
    builder = forward().op("SoftmaxBackward0", 60, 70, sequence=4, backward=True)
    builder.launch("of softmax", 65, gpu=(165, 170))
    found = told(*builder.table(), names=("attention",))
    assert {name for name, _ in found.values()} == {"attention"}


def test_work_outside_is_for_none():
    builder = forward().op("aten::add", 55, 58, sequence=5).launch("add", 56, gpu=(156, 157))
    builder.op("AddBackward0", 60, 65, sequence=5, backward=True)
    builder.launch("of add", 61, gpu=(161, 162)).op("UnheardBackward0", 66, 70, sequence=99)
    builder.launch("of what the trace lacks", 67, gpu=(167, 168)).gpu("unknown", 200, 201)
    found = told(*builder.table())
    assert found["add"] == (None, FORWARD)
    assert found["of add"] == found["of what the trace lacks"] == (None, BACKWARD)
    assert found["unknown"] == (None, FORWARD)


def test_what_is_computed_again_is_the_backward_passes():
    builder = forward().op("SoftmaxBackward0", 60, 90, "autograd", sequence=4, backward=True)
    builder.range("attention", 62, 80, "autograd")
    builder.launch("again", 65, gpu=(165, 170), thread="autograd")
    builder.launch("gradient", 85, gpu=(185, 190), thread="autograd")
    found = told(*builder.table())
    assert found["again"] == ("attention", BACKWARD)
    assert found["gradient"] == ("softmax", BACKWARD)


def test_a_table_without_a_host_or_without_the_ranges():
    table, launches = Rows().gpu("k", 0, 1).table()
    assert told(table, launches) == {"k": (None, FORWARD)}
    assert told(*forward().table(), names=())["mm"] == (None, FORWARD)


def test_the_parts_of_naive_attention_forward_and_backward():
    table = with_host_work(read(CPU_ATTENTION))
    names = [f"peakward::attention.{part}" for part in ("scores", "softmax", "values")]
    found = parts(table, operator_rows(table), names)

    def operators(part, direction, operator):
        name = table.names.index(f"peakward::attention.{part}")
        rows = (found.name == name) & (found.direction == direction)
        return int(np.sum(table.gpu.name[rows] == table.names.index(operator)))

    for part in ("scores", "values"):
        # Two steps; a product has two gradients.
        assert operators(part, FORWARD, "aten::bmm") == 2
        assert operators(part, BACKWARD, "aten::bmm") == 4
    assert operators("softmax", FORWARD, "aten::_softmax") == 2
    assert operators("softmax", BACKWARD, "aten::_softmax_backward_data") == 2
    assert operators("scores", BACKWARD, "aten::masked_fill_") == 2


def test_backward_kernels_of_a_compiled_decoder_are_for_its_forward_range():
    trace = Trace.open(COMPILED)
    found = parts(trace.table, trace.launches, ("forward",))
    inside, backward = found.name != NONE, found.direction == BACKWARD
    code = trace.phases.code
    assert inside[code == PhaseCode.FORWARD].all()
    assert not inside[code == PhaseCode.OPTIMIZER].any()
    assert (inside & backward)[code == PhaseCode.BACKWARD].sum() == 249
    # The first gradient, which `backward()` fills before any node runs.
    assert (~inside & (code == PhaseCode.BACKWARD)).sum() == 1
