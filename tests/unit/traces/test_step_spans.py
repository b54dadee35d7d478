"""Where the steps of a trace begin and end, and which GPU work is theirs."""

import pytest

from peakward.diagnose.diagnosis_input import DiagnosisInput
from peakward.diagnose.examine import examine
from peakward.traces.host_work import with_host_work
from peakward.traces.step_spans import step_rows
from peakward.traces.table import HostKind
from peakward.traces.trace import Trace

from .plain_readers import real as plain_real
from .real import A100, real
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
    assert said.endswith("launched before the first marked step.")


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
    assert "and 1 of the steps that ran beside them" in found.incomplete[0]


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


MS = 1_000_000


def profiled(builder):
    return Trace.of(builder.table()[0]).profile()


def told(found):
    return examine(DiagnosisInput(subject="a trace", profile=found))


def idle_ms(found):
    return {cause: ns / MS for cause, ns in found.idle.together.by_cause_ns.items() if ns}


def prepared_on_the_host(*, loading_ms=0):
    """A step whose host works 218 ms before its first launch; the GPU then works 160 ms."""
    builder = Rows().range("ProfilerStep#0", 0, 380 * MS)
    if loading_ms:
        builder.range("enumerate(DataLoader)#_It.__next__", 2 * MS, (2 + loading_ms) * MS)
    builder.launch("gemm", 218 * MS, gpu=(218 * MS + 2, 298 * MS))
    return builder.launch("gemm", 219 * MS, gpu=(298 * MS, 378 * MS))


@pytest.mark.parametrize("loading_ms", [0, 200])
def test_the_host_s_time_before_its_first_launch_is_the_step_s(loading_ms):
    found = profiled(prepared_on_the_host(loading_ms=loading_ms))
    together = found.breakdown.together
    assert (together.span_ns, together.busy_ns) == (380 * MS, 160 * MS - 2)
    causes = {"host_bound": 220 - loading_ms + 2 / MS, "data_loading": loading_ms}
    assert idle_ms(found) == pytest.approx({cause: ms for cause, ms in causes.items() if ms})
    code = "HOST001" if loading_ms else "HOST003"
    assert [each.code for each in told(found).findings] == [code]


def test_a_finding_about_11_microseconds_of_34_ms_has_no_bound_of_thousands():
    builder = Rows().range("ProfilerStep#0", 0, 34 * MS)
    builder.launch(SUMS, 33 * MS, gpu=(33 * MS + 2, 33 * MS + 11_002))
    found = told(profiled(builder))
    assert found.whole_s == pytest.approx(34e-3)
    assert "BW001" not in [each.code for each in found.findings]


SUMS = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >()"


def test_the_host_s_time_after_its_last_gpu_work_is_the_step_s():
    """It waits for the GPU, whose work ends at 20, until 22, and works on until its mark ends."""
    builder = Rows().range("ProfilerStep#0", 0, 50 * MS).launch("gemm", 0, gpu=(2, 20 * MS))
    builder.host(HostKind.CALL, "cudaDeviceSynchronize", 1 * MS, 22 * MS)
    found = profiled(builder)
    assert found.breakdown.together.span_ns == 50 * MS
    wanted = {"synchronisation": 2, "after_synchronisation": 28, "host_bound": 2 / MS}
    assert idle_ms(found) == pytest.approx(wanted)
    assert found.path.span_ns == 50 * MS
    assert found.path.by_kind_ns["host"] == 28 * MS
    assert found.path.by_kind_ns["synchronisation"] == 2 * MS


def test_a_host_that_runs_ahead_leaves_the_steps_to_the_gpu():
    """Marks of 1 ms, work of 10 ms each: the last is done at 31, long after its mark."""
    builder = Rows()
    for i in range(3):
        builder.range(f"ProfilerStep#{i}", i * MS, (i + 1) * MS)
        builder.launch("gemm", i * MS, gpu=((1 + 10 * i) * MS, (11 + 10 * i) * MS))
    found = profiled(builder)
    assert found.breakdown.together.span_ns == 31 * MS - MS
    assert found.breakdown.together.busy_ns == 30 * MS
    assert told(found).whole_s == pytest.approx(10e-3)


def test_earlier_steps_that_the_trace_shows_end_where_their_work_is_done():
    """The steps begin where the work of those before is done, by which time their mark had long begun."""
    builder = Rows().launch("warm", -5 * MS, gpu=(-4 * MS, 6 * MS))
    for i in range(2):
        builder.range(f"ProfilerStep#{i}", i * MS, (i + 1) * MS)
        builder.launch("gemm", i * MS, gpu=((6 + 10 * i) * MS, (16 + 10 * i) * MS))
    found = profiled(builder)
    assert {each.name for each in found.kernels} == {"gemm"}
    assert found.breakdown.together.span_ns == found.breakdown.together.busy_ns == 20 * MS


def test_what_is_launched_after_the_last_step_is_none_of_it():
    builder = Rows().range("ProfilerStep#0", 0, 10 * MS).launch("gemm", 0, gpu=(2, 9 * MS))
    found = profiled(builder.launch("save", 11 * MS, gpu=(12 * MS, 40 * MS)))
    assert found.breakdown.together.span_ns == 10 * MS
    assert {each.name for each in found.kernels} == {"gemm"}
    assert any("launched after the last marked step" in each for each in found.incomplete)


def cut(*, first_ms, mark_ms=1):
    """Two steps of 10 ms of work; what the GPU did until the first of it is not in the trace."""
    builder = Rows()
    for i in range(2):
        builder.range(f"ProfilerStep#{i}", i * mark_ms * MS, (i + 1) * mark_ms * MS)
        start = (first_ms + 10 * i) * MS
        builder.launch("gemm", i * mark_ms * MS, gpu=(start, start + 10 * MS))
    return builder


def test_a_first_step_whose_gpu_was_at_work_that_the_trace_lacks_is_cut_there():
    found = profiled(cut(first_ms=7))
    assert found.breakdown.together.span_ns == found.breakdown.together.busy_ns == 20 * MS
    assert any("Left out: the 7.000 ms from the first mark" in each for each in found.incomplete)


def test_a_first_step_that_was_done_within_its_mark_is_whole():
    found = profiled(cut(first_ms=7, mark_ms=30))
    assert found.breakdown.together.span_ns == 60 * MS
    assert found.incomplete == ()


def test_a_step_without_gpu_work_is_idle():
    builder = Rows().range("ProfilerStep#0", 0, 10 * MS).range("ProfilerStep#1", 10 * MS, 25 * MS)
    found = profiled(builder.launch("gemm", 0, gpu=(2, 9 * MS)))
    assert (found.n_steps, found.breakdown.together.span_ns) == (2, 25 * MS)
    assert told(found).whole_s == pytest.approx(12.5e-3)


def test_marks_in_which_nothing_was_launched_say_nothing_about_the_work():
    builder = Rows().range("ProfilerStep#0", 0, 10).launch("gemm", 20, gpu=(30, 90))
    found = profiled(builder)
    assert found.breakdown.together.span_ns == 60


def test_each_device_has_its_own_end_and_all_of_them_the_marks():
    builder = Rows().range("ProfilerStep#0", 0, 10 * MS)
    builder.launch("gemm", 1 * MS, gpu=(2 * MS, 14 * MS), device=0)
    builder.launch("gemm", 2 * MS, gpu=(3 * MS, 5 * MS), device=1)
    builder.launch("relu", 2 * MS + 10, gpu=(4 * MS, 6 * MS), device=1, stream=20)
    found = profiled(builder)
    assert [each.span_ns / MS for each in found.breakdown.devices] == [14, 10]
    assert [each.busy_ns / MS for each in found.breakdown.devices] == [12, 3]
    assert found.breakdown.span_ns == 14 * MS


def test_processes_mark_their_own_steps():
    builder = Rows()
    for rank, last_ms in enumerate((10, 30)):
        for i in range(2):
            at = i * last_ms * MS // 2
            builder.range("peakward::step", at, at + last_ms * MS // 2, thread=f"{rank}/main")
            gpu = (at + 3, at + MS)
            builder.launch("gemm", at + 1, gpu=gpu, thread=f"{rank}/main", device=rank)
    found = profiled(builder)
    assert found.n_steps == 2
    assert [each.span_ns / MS for each in found.breakdown.devices] == [10, 30]
    assert told(found).whole_s == pytest.approx(10e-3)


def test_a_captured_step_goes_from_mark_to_mark_too():
    kernels = [((4 + i) * MS, (5 + i) * MS) for i in range(3)]
    builder = Rows().range("ProfilerStep#0", 0, 20 * MS)
    builder.launch("gemm", 4 * MS - 10, gpu=kernels, call="cudaGraphLaunch")
    found = profiled(builder)
    assert found.breakdown.together.span_ns == 20 * MS
    wanted = {"host_bound": 17 - 8 / MS, "graph_start": 8 / MS}
    assert idle_ms(found) == pytest.approx(wanted)


def test_without_marks_it_is_the_whole_file_from_first_work_to_last():
    builder = Rows().op("aten::mm", 0, 200).launch("gemm", 100, gpu=(110, 150))
    found = profiled(builder.launch("gemm", 160, gpu=(170, 190)))
    assert found.breakdown.together.span_ns == 80


def test_on_a_cpu_the_step_holds_what_is_outside_its_operators():
    builder = Rows().range("ProfilerStep#0", 0, 100).op("aten::mm", 60, 90).op("aten::mm", 110, 150)
    found = Trace.of(with_host_work(builder.table()[0])).profile()
    assert found.breakdown.together.span_ns == 100
    assert found.breakdown.together.busy_ns == 30


def test_the_steps_of_an_a100_to_the_nanosecond():
    """From its first mark, 6,092,115 ns before the first of its work, to the end of its last, 582,838 ns
    after the last; all else is of the whole file."""
    table = real(A100)
    found = Trace.of(table).breakdown().together
    assert found.span_ns == 6_092_115 + 660_551_005 + 582_838
    whole = Trace(table).breakdown().together
    assert whole.span_ns == 660_551_005
    assert found.busy_ns == whole.busy_ns == 157_500_014


def test_calls_before_and_after_the_steps_are_none_of_them():
    """Memory that is made ready before the first, and the wait with which the profiler ends."""
    builder = Rows().range("ProfilerStep#0", 0, 10 * MS).launch("gemm", 0, gpu=(2, 15 * MS))
    builder.host(HostKind.CALL, "cudaMalloc", -3 * MS, -2 * MS)
    builder.host(HostKind.CALL, "cudaFree", 3 * MS, 4 * MS)
    builder.host(HostKind.CALL, "cudaStreamSynchronize", 5 * MS, 6 * MS)
    builder.host(HostKind.CALL, "cudaDeviceSynchronize", 11 * MS, 16 * MS)
    found = profiled(builder)
    names = {"cudaFree", "cudaStreamSynchronize", "cudaLaunchKernel"}
    assert {each.name for each in found.host.calls} == names
    assert [each.call for each in found.waits] == ["cudaStreamSynchronize"]


def starts(builder):
    table, _ = builder.table()
    return table.host.start_ns[step_rows(table)].tolist()


def test_torchs_steps():
    assert starts(Rows().range("ProfilerStep#7", 0, 10).range("ProfilerStep#8", 10, 20)) == [0, 10]


def test_peakwards_steps_before_torchs():
    builder = Rows().range("ProfilerStep#0", 0, 40)
    builder.range("peakward::step", 1, 10).range("peakward::step", 11, 20)
    builder.range("peakward::steps", 0, 40).range("ProfilerStep#x", 0, 40)
    assert starts(builder) == [1, 11]


def test_no_steps():
    assert starts(Rows().range("training", 0, 10)) == []


@pytest.mark.parametrize(
    ("name", "n"), [("a100_ddp_nccl_ns.json.gz", 3), ("two_ranks_us_rank0.json.gz", 2)]
)
def test_steps_of_real_traces(name, n):
    table, _ = plain_real(name)
    assert len(step_rows(table)) == n
