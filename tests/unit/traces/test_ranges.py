"""The host range in which each piece of GPU work was launched; autograd's rows and threads."""

import numpy as np
import pytest

from peakward.traces.intervals import rows_of
from peakward.traces.ranges import (
    backward_rows,
    innermost_at,
    launch_sites,
    named_range,
    waiting_threads,
)
from peakward.traces.table import NONE, HostKind

from .plain_readers import real
from .rows import Rows


def innermost(table, launches, kinds=(HostKind.RANGE, HostKind.OP)):
    return innermost_at(table, launch_sites(table, launches), rows_of(table.host, kinds))


def range_names(table, found):
    return [None if row == NONE else table.names[table.host.name[row]] for row in found]


def test_work_belongs_to_what_was_open_when_it_was_launched():
    builder = Rows().range("outer", 0, 100).op("aten::mm", 10, 50)
    builder.launch("in mm", 20, gpu=(300, 400)).launch("after mm", 60, gpu=(400, 500))
    builder.launch("outside", 200, gpu=(500, 600)).gpu("unknown", 700, 800)
    table, launches = builder.table()
    assert range_names(table, innermost(table, launches)) == [
        "aten::mm",
        "outer",
        None,
        None,
    ]
    of_ranges = innermost(table, launches, (HostKind.RANGE,))
    assert range_names(table, of_ranges) == ["outer", "outer", None, None]


def test_work_of_autograds_thread_lies_in_the_range_of_the_thread_that_waits():
    builder = Rows().range("train", 0, 100).op("aten::mm", 1, 9, sequence=3)
    builder.range("backward", 10, 50).op("aten::sleep", 11, 49)
    builder.op("MmBackward0", 20, 30, "autograd", sequence=3)
    builder.launch("in node", 25, gpu=(125, 130), thread="autograd")
    builder.launch("between nodes", 35, gpu=(135, 140), thread="autograd")
    table, launches = builder.table()
    found = innermost(table, launches)
    assert range_names(table, found) == ["MmBackward0", "backward"]
    found = innermost(table, launches, (HostKind.RANGE,))
    assert range_names(table, found) == ["backward", "backward"]


def test_every_instance_of_a_name_at_any_depth():
    builder = Rows().range("layer", 0, 10).op("aten::mm", 1, 5).range("layer", 20, 30)
    builder.launch("a", 2, gpu=(100, 110)).launch("b", 15, gpu=(110, 120))
    builder.launch("c", 21, gpu=[(120, 130), (130, 140)])
    table, launches = builder.table()
    found = named_range(table, launches, "layer")
    assert found.inside.tolist() == [True, False, True, True]
    assert found.instance.tolist() == [0, NONE, 1, 1]
    assert found.start_ns.tolist() == [0, 20]
    assert found.end_ns.tolist() == [10, 30]
    assert named_range(table, launches, "aten::mm").inside.tolist() == [True, False, False, False]


def test_a_name_that_no_range_has():
    table, launches = Rows().range("layer", 0, 10).launch("layer 2", 2, gpu=(3, 4)).table()
    for name in ("nothing", "layer 2"):
        found = named_range(table, launches, name)
        assert len(found.rows) == 0
        assert not found.inside.any()


def test_a_table_without_a_host():
    table, launches = Rows().gpu("k", 0, 1).table()
    assert innermost(table, launches).tolist() == [NONE]


def test_kernel_time_by_innermost_nvtx_range():
    table, launches = real("h100_2gpu_flash_nccl.sqlite")
    found = innermost(table, launches)

    def figures(name):
        inside = found != NONE
        inside[inside] = table.host.name[found[inside]] == table.names.index(name)
        return len(np.unique(launches[inside])), int(table.gpu.duration_ns[inside].sum())

    assert (launches != NONE).sum() == 3986
    assert figures("flash_attn::_flash_attn_forward") == (66, 256_586_234)
    assert figures("aten::copy_") == (1816, 64_364_656)
    assert figures("aten::addmm") == (335, 57_595_448)
    assert figures("aten::mul") == (501, 42_979_045)
    assert figures("ncclGroupEnd") == (64, 25_179_513)


def test_ddp_backward_ranges_hold_the_work_of_autograds_thread():
    table, launches = real("a100_ddp_nccl_ns.json.gz")
    found = named_range(table, launches, "## backward ##")
    assert len(found.rows) == 3
    launched_by = table.host.thread[launches[found.inside]]
    assert len(np.unique(launched_by)) == 2
    assert np.unique(found.instance[found.inside]).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("autograd::engine::evaluate_function: MmBackward0", True),
        ("MmBackward0", True),
        ("CompiledFunctionBackward", True),
        ("NllLoss2DBackward0", True),
        ("torch::autograd::AccumulateGrad", True),
        ("aten::_scaled_dot_product_flash_attention_backward", False),
        ("triton_poi_fused_backward_0", False),
        ("## backward ##", False),
        ("Backward", False),
        ("aten::mm", False),
    ],
)
def test_autograds_own_names(name, expected):
    table, _ = Rows().op(name, 0, 1).table()
    assert (len(backward_rows(table)) == 1) is expected


def test_an_operator_that_runs_for_a_forward_thread_is_backward():
    table, _ = Rows().op("aten::mm", 0, 1, backward=True).op("aten::mm", 1, 2).table()
    assert backward_rows(table).tolist() == [0]


def test_the_thread_with_the_forward_operators_waits():
    builder = Rows().op("load", 0, 1, "busy").op("load", 1, 2, "busy").op("load", 2, 3, "busy")
    builder.op("aten::mm", 0, 1, "main", sequence=5)
    builder.op("aten::mm", 9, 10, "2/other", sequence=5)
    builder.op("MmBackward0", 3, 4, "autograd", sequence=5, backward=True)
    table, _ = builder.table()
    waiting = dict(zip([t.tid for t in table.threads], waiting_threads(table), strict=True))
    assert waiting == {"busy": 1, "main": NONE, "other": NONE, "autograd": 1}


def test_most_numbers_decide():
    builder = Rows()
    for number in range(4):
        builder.op("aten::mm", number, number + 1, "main", sequence=number)
        builder.op("MmBackward0", 9, 9, "autograd", sequence=number)
    builder.op("aten::mm", 5, 6, "second", sequence=0)
    table, _ = builder.table()
    assert waiting_threads(table).tolist() == [NONE, 0, 0]


def test_without_numbers_the_busiest_thread_waits():
    builder = Rows().range("backward", 0, 10).range("x", 1, 2, "2/one")
    builder.launch("k", 5, gpu=(6, 7), thread="autograd")
    table, _ = builder.table()
    assert waiting_threads(table).tolist() == [NONE, NONE, 0]


def test_no_rows_at_all():
    assert waiting_threads(Rows().table()[0]).tolist() == []
    only_calls, _ = Rows().launch("k", 5, gpu=(6, 7)).table()
    assert waiting_threads(only_calls).tolist() == [NONE]


def test_real_backward_threads_wait_for_the_main_one():
    table, _ = real("a100_ddp_nccl_ns.json.gz")
    waiting = waiting_threads(table)
    main = next(i for i, thread in enumerate(table.threads) if thread.tid == "2910249")
    assert waiting[main] == NONE
    assert (np.delete(waiting, main) == main).all()
