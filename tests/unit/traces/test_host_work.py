"""The self time of the host's operators as work."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.records.errors import PeakwardError
from peakward.traces.host_work import host_breakdown, is_of_host, operator_rows, with_host_work
from peakward.traces.intervals import total, union
from peakward.traces.reading import read
from peakward.traces.table import HostKind
from peakward.traces.trace import Trace, compare

from .handmade import Gpu, Host, table
from .own import COMPILED, CPU_ATTENTION, CPU_DECODER


def op(start, end, name="aten::mm", thread=0):
    return Host(start, end, name, kind=HostKind.OP, thread=thread)


def test_an_operator_has_the_time_that_no_operator_in_it_has():
    made = with_host_work(
        table(
            host=[
                op(0, 100, "aten::linear"),
                op(10, 70, "aten::addmm"),
                op(20, 30, "aten::expand"),
                Host(40, 50, "a range", kind=HostKind.RANGE),
                op(80, 90, "aten::t"),
            ]
        )
    )
    work = made.gpu
    named = dict(zip([made.names[i] for i in work.name], work.duration_ns.tolist(), strict=True))
    assert named == {"aten::linear": 30, "aten::addmm": 50, "aten::expand": 10, "aten::t": 10}
    assert operator_rows(made).tolist() == [0, 1, 2, 4]
    assert is_of_host(made)


def test_busy_is_the_time_in_any_operator_on_any_thread():
    made = with_host_work(table(host=[op(0, 10), op(5, 20, thread=1), op(40, 50)], threads=(0, 0)))
    found = host_breakdown(made).together
    assert (found.span_ns, found.busy_ns, found.idle_ns) == (50, 30, 20)
    assert made.gpu.duration_ns.sum() == 35


def test_nothing_is_added_to_gpu_work_or_made_of_ranges_alone():
    with_gpu = table([Gpu(0, 1)], [op(0, 1)])
    without_ops = table(host=[Host(0, 9, "a range", kind=HostKind.RANGE)])
    for each in (with_gpu, without_ops):
        assert with_host_work(each) is each
        assert not is_of_host(each)


rows = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 1)), min_size=1, max_size=12
)


@given(rows)
def test_self_times_of_a_thread_sum_to_the_time_in_any_of_its_operators(some):
    made = with_host_work(
        table(host=[op(s, s + d, thread=thread) for s, d, thread in some], threads=(0, 0))
    )
    assert len(made.gpu) == len(some)
    for thread in (0, 1):
        mine = made.gpu.stream == thread
        of_host = made.host.thread == thread
        covered = union(made.host.start_ns[of_host], made.host.end_ns[of_host])
        assert made.gpu.duration_ns[mine].sum() == total(covered)


def test_self_times_of_a_real_step_sum_to_the_time_in_operators():
    made = with_host_work(read(CPU_DECODER))
    assert len(np.unique(made.gpu.stream)) == 1
    assert made.gpu.duration_ns.sum() == host_breakdown(made).together.busy_ns


@pytest.fixture(scope="module")
def step():
    return Trace.open(CPU_DECODER)


def test_a_step_on_a_cpu_has_phases_and_categories(step):
    found = step.profile()
    assert found.is_of_host
    assert found.devices == ("CPU",)
    assert found.n_steps == 1
    assert {each.phase for each in found.phases} == {"forward", "backward", "optimizer"}
    whole = int(step.table.gpu.duration_ns.sum())
    for groups in (found.phases, found.categories, found.kernels):
        assert sum(each.total_ns for each in groups) == whole
    assert found.unnamed_share == 0
    largest = found.categories[0]
    assert largest.name in {"matmul", "elementwise"}


def test_what_only_a_gpu_has_is_left_out(step):
    found = step.profile()
    assert found.idle is None
    assert found.path is None
    assert (found.delays, found.waits, found.transfers, found.collectives) == ((), (), (), ())
    (said,) = found.incomplete
    assert "self time of the framework's operators" in said


def test_products_have_their_flops():
    found = Trace.open(CPU_ATTENTION).profile()
    products = [each for each in found.operators if each.name == "aten::bmm"]
    # Two steps of two products forward and four backward, each 2·B·H·S²·d.
    assert sum(each.n for each in products) == 12
    assert sum(each.flops or 0 for each in products) == 12 * 2 * 2 * 2 * 64 * 64 * 32


def test_a_phase_and_a_range_are_parts(step):
    whole = {each.name: each.total_ns for each in step.profile().phases}
    part = step.profile(phase="optimizer")
    assert sum(each.total_ns for each in part.kernels) == whole["optimizer"]
    assert part.is_of_host
    assert part.breakdown.together.busy_ns <= step.breakdown().together.busy_ns
    scores = step.profile(range_name="peakward::attention.scores")
    assert "aten::bmm" in {each.name for each in scores.kernels}


def test_the_calls_into_a_driver_that_shows_no_work_are_told():
    ops = with_host_work(table(host=[op(0, 10), Host(1, 2)]))
    assert any("1 calls into a GPU's driver" in each for each in Trace(ops).profile().incomplete)


def test_the_host_is_not_compared_with_gpus():
    with pytest.raises(PeakwardError, match=r"got none in 'cpu_decoder\.json\.gz'"):
        compare([Trace.open(COMPILED), Trace.open(CPU_DECODER)])


def test_ranks_without_a_gpu_are_compared_by_gloo_and_the_innermost_operators():
    def rank(late):
        joins = 10 + 20 * late
        rows = [
            op(0, 10, "aten::linear"),
            op(2, 8, "aten::addmm"),
            op(joins, joins + 4, "c10d::allreduce_"),
            Host(joins, 60, "gloo:all_reduce", kind=HostKind.RANGE, thread=1),
            op(40, 45, "aten::relu"),
            Host(10, joins, "load batch", kind=HostKind.RANGE),
        ]
        return Trace.of(with_host_work(table(host=rows, threads=(0, 0))))

    found = compare([rank(0), rank(1)])
    assert found.of_host
    assert [each.compute_ns for each in found.ranks] == [6 + 5] * 2, "addmm and relu"
    assert [each.communication_ns for each in found.ranks] == [50, 30]
    assert [each.exposed_ns for each in found.ranks] == [45, 25]
    assert [each.waited_ns for each in found.ranks] == [20, 0]
    assert (found.late, found.late_by[0].kind, found.late_by[0].name) == (1, "idle", "load batch")
    assert found.late_by[0].ns == 20


def test_what_gloo_sends_is_no_collective():
    def rank():
        rows = [op(0, 5), Host(5, 9, "gloo:send", kind=HostKind.RANGE)]
        return Trace.of(with_host_work(table(host=rows)))

    assert compare([rank(), rank()]).n_unmatched == 2
