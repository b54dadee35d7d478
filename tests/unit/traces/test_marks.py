import numpy as np
import pytest

from peakward.traces.marks import backward_rows, waiting_threads
from peakward.traces.table import NONE

from .plain_readers import real
from .rows import Rows


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
