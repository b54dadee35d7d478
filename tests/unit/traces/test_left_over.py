"""Work that runs in a trace's window and was launched before it."""

import pytest

from peakward.traces.trace import Trace

from .rows import Rows


def two_steps(*, n_before=3, marked=True):
    """Kernels of an earlier step, of 100 ns each, then two steps of two kernels each."""
    builder = Rows()
    for i in range(n_before):
        builder.gpu("gemm", 1000 + 100 * i, 1100 + 100 * i, correlation=900 + i)
    at = 1000 + 100 * n_before
    for i in range(2):
        if marked:
            builder.range(f"ProfilerStep#{i}", 100 * i, 100 * i + 90)
        builder.launch("gemm", 100 * i + 10, gpu=(at + 200 * i, at + 200 * i + 100))
        builder.launch("relu", 100 * i + 50, gpu=(at + 200 * i + 100, at + 200 * i + 200))
    return builder


def test_it_is_no_work_of_the_steps():
    table, _ = two_steps().table()
    found = Trace.of(table).profile()
    assert found.n_steps == 2
    assert {each.name: each.n for each in found.kernels} == {"gemm": 2, "relu": 2}
    assert found.breakdown.together.span_ns == 400
    (said,) = found.incomplete
    assert said.startswith("Left out: 3 pieces of GPU work (42.9% of the time of all)")
    assert said.endswith("had launched.")


def test_without_any_the_table_is_as_it_was():
    table, _ = two_steps(n_before=0).table()
    assert Trace.of(table).table is table


def test_where_no_steps_are_marked_it_stays():
    table, _ = two_steps(marked=False).table()
    found = Trace.of(table)
    assert found.table is table
    assert any("launch of 3 of 7" in each for each in found.profile().incomplete)


@pytest.mark.parametrize("at", [1500, 1750])
def test_an_unknown_launch_among_the_others_stays(at):
    """It may be of the steps: its launch was lost."""
    table, _ = two_steps().gpu("lost", at, at + 10).table()
    found = Trace.of(table).profile()
    assert {each.name: each.n for each in found.kernels} == {"gemm": 2, "relu": 2, "lost": 1}


def test_each_device_has_its_own_beginning():
    builder = two_steps(n_before=1)
    builder.gpu("copy", 1050, 1060, device=1).launch("copy", 95, gpu=(1070, 1080), device=1)
    table, _ = builder.table()
    found = Trace.of(table).profile()
    assert {each.name: each.n for each in found.kernels} == {"gemm": 2, "relu": 2, "copy": 1}


def test_a_stream_that_is_not_behind_hides_no_other():
    """A batch is copied ahead while the products of earlier steps still run: neither that nor the time until
    they end is of the steps."""
    builder = two_steps(n_before=5)
    builder.launch("copy", 3, gpu=(1005, 1010), call="cudaMemcpyAsync", stream=20)
    builder.launch("copy", 103, gpu=(1650, 1655), call="cudaMemcpyAsync", stream=20)
    table, _ = builder.table()
    found = Trace.of(table).profile()
    assert {each.name: each.n for each in found.kernels} == {"gemm": 2, "relu": 2, "copy": 1}
    assert found.breakdown.together.span_ns == 400
    assert found.incomplete[0].endswith("and 1 of later steps that ran beside them.")


def test_a_stream_of_earlier_steps_alone_is_left_out_with_its_device_s():
    builder = two_steps(n_before=1).gpu("reduce", 1020, 1030, stream=30)
    table, _ = builder.table()
    found = Trace.of(table).profile()
    assert {each.name: each.n for each in found.kernels} == {"gemm": 2, "relu": 2}


def test_a_trace_whose_launches_are_all_unknown_stays():
    """Only the GPU was profiled."""
    builder = Rows().range("ProfilerStep#0", 0, 100).gpu("gemm", 10, 20).gpu("gemm", 30, 40)
    table, _ = builder.table()
    assert len(Trace.of(table).table.gpu) == 2
