"""Traces most of whose time goes to what no rule is about: what of them is named."""

import pytest

from peakward.diagnose.diagnosis_input import DiagnosisInput
from peakward.diagnose.examine import examine
from peakward.records.profile import Profile
from peakward.traces.table import NONE, Direction, GpuKind, HostKind
from peakward.traces.trace import Trace

from .rows import Rows

MS = 1_000_000


def told(builder: Rows) -> tuple[Profile, list]:
    """A trace's profile, and what is found in it."""
    found = Trace.of(builder.table()[0]).profile()
    return found, list(examine(DiagnosisInput(subject="a trace", profile=found)).findings)


def test_copies_that_take_97_percent_of_a_trace_without_steps():
    builder = Rows()
    for i in range(4):
        at = 100 * i * MS
        copy = (at + 10, at + 97 * MS)
        builder.launch(
            "Memcpy HtoD", at, gpu=copy, call="cudaMemcpyAsync", kind=GpuKind.COPY,
            direction=Direction.HOST_TO_DEVICE, n_bytes=1 << 30,
        )  # fmt: skip
        builder.launch("gemm", at + 20, gpu=(at + 97 * MS, at + 98 * MS))
    _, (found,) = told(builder)
    assert (found.code, found.title) == ("TIME001", "Unexplained time: copies host to device")
    assert found.share == pytest.approx(0.97, abs=0.01)
    assert found.cause.startswith("No other finding explains 99% of the time; the largest part")
    seen = {each.name: each.value for each in found.evidence}
    assert (seen["host to device"], seen["their bytes"]) == (4, 4 << 30)


def waited_for(builder: Rows) -> list:
    """An idle GPU, while another thread than the launching one is in one wait of 463 ms."""
    builder.launch("gemm", 0, gpu=(10, 5 * MS))
    start, end = 6 * MS, 469 * MS
    builder.host(HostKind.CALL, "cudaEventSynchronize", start, end, "waiter")
    found, findings = told(builder)
    assert found.breakdown.together.busy_ns / found.breakdown.together.span_ns < 0.03
    return findings


def test_a_gpu_that_idles_without_a_reason_and_the_call_that_its_host_is_in():
    builder = Rows().launch("gemm", 1000, gpu=(470 * MS, 475 * MS))
    (found,) = waited_for(builder)
    assert found.code == "TIME001"
    assert found.title == (
        "Unexplained time: GPU idle, unknown (nothing in the trace explains it), host in "
        "cudaEventSynchronize"
    )
    longest = next(each for each in found.evidence if each.name.startswith("cudaEventSync"))
    assert longest.value == pytest.approx(0.463)


def test_a_gpu_that_idles_before_work_of_unknown_launch():
    builder = Rows().gpu("gemm", 470 * MS, 475 * MS, correlation=NONE)
    (found,) = waited_for(builder)
    assert "launch is not in the trace), host in cudaEventSynchronize" in found.title


def test_gaps_before_graphs_that_were_launched_long_before_are_no_starts_of_graphs():
    """423 ms of gaps of 49 to 176 ms, whose graph was launched as much earlier, of 650 ms."""
    builder, at = Rows(), 0
    for gap_ms in (0, 49, 81, 117, 176):
        start = at + gap_ms * MS
        builder.launch("gemm", at - 5000, gpu=(start, start + 45 * MS), call="cudaGraphLaunch")
        at = start + 45 * MS
    found, (finding,) = told(builder)
    by_cause = found.idle.together.by_cause_ns
    assert by_cause["graph_start"] == 0
    assert by_cause["unseen"] == found.breakdown.together.idle_ns == 423 * MS
    assert finding.code == "TIME001"
    assert finding.share == pytest.approx(0.65, abs=0.01)


@pytest.mark.parametrize("call", ["cudaHostAlloc", "cuModuleLoadData"])
def test_a_long_call_that_launches_nothing_is_no_slow_launching(call):
    builder = Rows().launch("gemm", 0, gpu=(10, 5 * MS))
    builder.host(HostKind.CALL, call, 6 * MS, 469 * MS)
    (found,) = told(builder.launch("gemm", 469 * MS + 1000, gpu=(470 * MS, 475 * MS)))[1]
    assert found.title == f"Unexplained time: GPU idle, host-bound, host in {call}"


def test_long_launches_are():
    builder = Rows().launch("gemm", 0, gpu=(10, 5 * MS))
    builder.host(HostKind.CALL, "cudaLaunchKernel", 6 * MS, 469 * MS, correlation=77)
    (found,) = told(builder.gpu("gemm", 470 * MS, 475 * MS, correlation=77))[1]
    assert found.code == "HOST002"
