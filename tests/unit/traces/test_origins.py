"""Work of graphs tied to an uncaptured step before them, on a trace made by hand."""

import json

import numpy as np
import pytest

from peakward.traces.host_work import with_host_work
from peakward.traces.origins import REHEARSAL, launched, without_rehearsal
from peakward.traces.table import NONE, GpuKind, HostKind
from peakward.traces.trace import Trace

from .rows import Rows

MM = json.dumps([[[3, 4], [4, 5]], ["float", "float"], ["", ""]])
MM_FLOPS = 120
STEP = ("gemm", "norm", "gemm_backward", "adamw")


def replay(builder, at, names=STEP, *, thread="main"):
    """A graph launched at `at`: its kernels of 10 ns each, one after another."""
    first, *others = names
    builder.launch(first, at, gpu=(at + 20, at + 30), call="cudaGraphLaunch", thread=thread)
    process = thread.rpartition("/")[0] or "1"
    for i, name in enumerate(others, start=1):
        start = at + 20 + 10 * i
        builder.gpu(name, start, start + 10, process, correlation=builder._correlation)


def rehearsed(*, graphs=(STEP, STEP)):
    """A rehearsal that ends at 500, then a replay from 1000 on, another from 2000 on."""
    builder = Rows().range(REHEARSAL, 0, 500)
    builder.range("peakward::forward", 10, 100).range("peakward::block 0", 20, 90)
    builder.op("aten::mm", 30, 40, shape=MM).launch("gemm", 32, gpu=(600, 650))
    builder.launch("norm", 60, gpu=(650, 660))
    builder.range("peakward::backward", 110, 200).launch("gemm_backward", 120, gpu=(660, 700))
    builder.range("peakward::optimizer", 210, 300).launch("adamw", 220, gpu=(700, 800))
    for i, names in enumerate(graphs, start=1):
        builder.range("peakward::step", 1000 * i, 1000 * i + 15)
        replay(builder, 1000 * i + 5, names)
    return builder.table()[0]


def phases(trace):
    return {each.phase: each.total_ns for each in trace.profile().phases}


def test_a_graph_s_work_belongs_to_the_phases_of_its_rehearsal():
    trace = Trace.of(rehearsed())
    assert phases(trace) == {"forward": 40, "backward": 20, "optimizer": 20}
    assert not trace.phases.undivided.any()
    block = [each for each in trace.ranges() if each.name == "peakward::block 0"]
    assert sum(each.total_ns for each in block) == 40


def test_the_rehearsal_s_own_work_is_not_counted():
    trace = Trace.of(rehearsed())
    assert len(trace.table.gpu) == 2 * len(STEP)
    found = trace.profile()
    assert found.n_steps == 2
    assert {each.name: each.n for each in found.kernels} == dict.fromkeys(STEP, 2)


def test_launches_stay_the_graph_s():
    """When work was launched is no matter of the rehearsal: the host waited for none of it."""
    trace = Trace.of(rehearsed())
    called = trace.table.host.name[trace.launches]
    assert {trace.table.names[name] for name in called} == {"cudaGraphLaunch"}


def test_an_operator_ran_as_often_as_its_graph_was_launched():
    (rate,) = Trace.of(rehearsed()).operators()
    assert (rate.n, rate.flops, rate.kernel_ns) == (2, 2 * MM_FLOPS, 20)
    assert rate.flops_per_s == pytest.approx(2 * MM_FLOPS / 20e-9)


def test_a_part_of_the_trace_keeps_what_its_work_is_for():
    trace = Trace.of(rehearsed())
    assert len(trace.select(phase="forward").table.gpu) == 4
    inside = trace.select(range_name="peakward::backward").profile()
    assert [each.phase for each in inside.phases] == ["backward"]


def test_what_differs_in_the_middle_stays_undivided():
    odd = ("gemm", "norm_of_another_kind", "gemm_backward", "adamw")
    trace = Trace.of(rehearsed(graphs=(STEP, odd)))
    assert phases(trace) == {"forward": 30, "backward": 20, "optimizer": 20, "other": 10}
    assert trace.phases.undivided.sum() == 1
    assert any("1 pieces of GPU work" in each for each in trace.profile().incomplete)


def test_a_rehearsal_that_broke_off_says_what_it_can():
    """A graph with more work than was rehearsed, whose end is another's: no copy of it either."""
    longer = (*STEP, "copied")
    found = without_rehearsal(rehearsed(graphs=(longer,)))
    assert found is not None
    _, origins = found
    assert origins.rehearsed.tolist() == [True] * len(STEP) + [False]


def test_a_copy_is_not_tied_to_a_kernel_of_its_name():
    builder = Rows().range(REHEARSAL, 0, 500).launch("move", 10, gpu=(20, 30))
    builder.launch("move", 1000, gpu=(1020, 1030), call="cudaGraphLaunch", kind=GpuKind.COPY)
    found = without_rehearsal(builder.table()[0])
    assert found is not None
    assert not found[1].rehearsed.any()


def test_a_trace_without_a_rehearsal_is_left_as_it_is():
    builder = Rows().range("peakward::step", 0, 100)
    replay(builder, 10)
    table, launches = builder.table()
    assert without_rehearsal(table) is None
    trace = Trace.of(table)
    assert trace.table is table
    assert np.array_equal(trace.origins.calls, launches)
    assert trace.phases.undivided.all()
    empty = Rows().range(REHEARSAL, 0, 5).launch("k", 10, gpu=(20, 30)).table()[0]
    assert without_rehearsal(empty) is None


def test_without_a_graph_nothing_is_taken_for_a_rehearsal():
    """Anyone may name a range so: no work is lost for it."""
    table = Rows().range(REHEARSAL, 0, 500).launch("k", 10, gpu=(20, 30)).table()[0]
    assert without_rehearsal(table) is None
    assert Trace.of(table).profile().breakdown.span_ns == 10


def test_of_a_trace_of_the_host_all_operators_are_kept():
    builder = Rows().range(REHEARSAL, 0, 500)
    for at in (20, 1020):
        builder.op("aten::mm", at, at + 5)
        builder._correlation += 1
        correlation = builder._correlation
        builder.host(HostKind.CALL, "cudaGraphLaunch", at + 1, at + 3, correlation=correlation)
    table = with_host_work(builder.table()[0])
    assert len(Trace.of(table).table.gpu) == len(table.gpu) == 2


def test_each_process_has_a_rehearsal_of_its_own():
    builder = Rows()
    for process, later in (("1", 0), ("2", 5)):
        thread = f"{process}/main"
        builder.range(REHEARSAL, 0, 500, thread)
        for i, name in enumerate(STEP):
            start = 600 + 10 * i + later
            builder.launch(name, 20 + 10 * i, gpu=(start, start + 5), thread=thread)
        replay(builder, 1005 + later, thread=thread)
    table, origins = without_rehearsal(builder.table()[0])
    assert origins.rehearsed.all()
    owner = table.process_of_thread[table.host.thread[origins.calls]]
    assert (owner == table.gpu.process).all()


def test_a_graph_s_work_is_inside_the_step_that_launched_it_too():
    inside = Trace.of(rehearsed()).select(range_name="peakward::step")
    assert len(inside.table.gpu) == 2 * len(STEP)


def test_waits_in_a_rehearsal_are_none_of_the_steps():
    builder = Rows().range(REHEARSAL, 0, 720).launch("gemm", 10, gpu=(20, 700))
    builder.host(HostKind.CALL, "cudaEventSynchronize", 510, 700)
    builder.range("peakward::step", 1000, 1015)
    replay(builder, 1005, ("gemm",))
    builder.host(HostKind.CALL, "cudaEventSynchronize", 1010, 1030)
    (wait,) = Trace.of(builder.table()[0]).profile().waits
    assert (wait.n, wait.sum_ns) == (1, 20)


def test_unknown_launches_stay_unknown():
    origins = launched(np.array([NONE, 3], dtype=np.int32))
    assert origins.calls.tolist() == [NONE, 3]
    assert not origins.rehearsed.any()


def test_it_is_said_what_told_the_phases():
    said = " ".join(Trace.of(rehearsed()).profile().evidence)
    assert "8 pieces of GPU work that graphs launched (100.0%)" in said
