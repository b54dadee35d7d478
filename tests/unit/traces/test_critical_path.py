"""What is on the critical path, added up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.breakdown import breakdown
from peakward.traces.critical_path import (
    PathKind,
    Stretch,
    critical_path,
    releases,
    walk,
    work_edges,
)
from peakward.traces.host_time import host_time
from peakward.traces.launches import launch_rows
from peakward.traces.step_spans import work_spans
from peakward.traces.table import NONE, GpuKind, HostKind

from .handmade import Gpu, Host, table
from .real import A100, H100_BERT, H100_NSYS, MI300_BERT, RANK_0, RANK_1, communication, real


def path(trace):
    return critical_path(trace, launch_rows(trace), communication(trace))


def test_by_kind_and_name():
    found = path(
        table(
            [
                Gpu(10, 50, "gemm", correlation=1),
                Gpu(50, 60, "nccl", stream=7),
                Gpu(61, 70, "copy", kind=GpuKind.COPY),
                Gpu(120, 130, "gemm", correlation=2),
            ],
            [
                Host(5, 8, correlation=1),
                Host(20, 75, "cudaDeviceSynchronize"),
                Host(80, 200, "step", kind=HostKind.RANGE),
                Host(90, 115, "aten::mm", kind=HostKind.OP),
                Host(100, 112, correlation=2),
            ],
        )
    )
    assert found.span_ns == 120
    shares = {(each.kind, each.name): (each.n, each.ns) for each in found.shares}
    assert shares == {
        (PathKind.COMPUTE, "gemm"): (2, 50),
        (PathKind.COMMUNICATION, "nccl"): (1, 10),
        (PathKind.QUEUED, None): (1, 1),
        (PathKind.MEMORY, "copy"): (1, 9),
        (PathKind.SYNCHRONISATION, None): (1, 5),
        (PathKind.HOST, None): (1, 5),
        (PathKind.HOST, "step"): (1, 10),
        (PathKind.OPERATOR, "aten::mm"): (1, 10),
        (PathKind.CALL, "cudaLaunchKernel"): (1, 12),
        (PathKind.LAUNCH_LATENCY, None): (1, 8),
    }
    assert [each.ns for each in found.shares] == sorted(
        (ns for _, ns in shares.values()), reverse=True
    )
    assert {k: ns for k, ns in found.by_kind_ns.items() if ns} == {
        "compute": 50,
        "communication": 10,
        "memory": 9,
        "operator": 10,
        "call": 12,
        "host": 15,
        "launch_latency": 8,
        "queued": 1,
        "synchronisation": 5,
    }


@pytest.mark.parametrize("name", [A100, RANK_0, RANK_1, H100_BERT, MI300_BERT, H100_NSYS])
def test_the_path_of_a_real_trace_is_as_long_as_its_span(name):
    trace = real(name)
    found = path(trace)
    assert found.span_ns == breakdown(trace, communication(trace)).span_ns
    assert found.span_ns == sum(found.by_kind_ns.values()) == sum(each.ns for each in found.shares)
    assert found.by_kind_ns["unknown"] == 0


def test_a_capture_that_synchronises_has_the_gpus_work_on_its_path():
    found = path(real(H100_NSYS))
    assert found.shares[0].kind is PathKind.COMPUTE
    assert "flash_fwd" in (found.shares[0].name or "")
    assert found.by_kind_ns["compute"] / found.span_ns > 0.6


def test_a_training_that_the_host_holds_back_has_the_host_on_its_path():
    found = path(real(A100))
    host = sum(found.by_kind_ns[kind] for kind in ("operator", "call", "host"))
    assert host / found.span_ns > 0.99


def test_every_kernel_of_a_graph_is_on_the_path():
    works = [Gpu(at, at + 9, "k", correlation=1) for at in range(10, 1010, 10)]
    found = path(table(works, [Host(0, 8, "cudaGraphLaunch", 1)]))
    assert (found.shares[0].name, found.shares[0].n) == ("k", 100)
    assert found.by_kind_ns["queued"] == 99


def test_no_work_no_path():
    found = critical_path(
        table(host=[Host(0, 1)]), np.zeros(0, dtype=np.int32), np.zeros(0, dtype=bool)
    )
    assert (found.span_ns, found.shares) == (0, ())


def stretches(gpu, host=(), threads=(0,)):
    trace = table(gpu, host, threads=threads)
    return walk(trace, launch_rows(trace), host_time(trace), work_spans(trace.gpu))[::-1]


def test_along_a_stream():
    assert stretches([Gpu(10, 20), Gpu(22, 30)]) == [
        Stretch(10, 20, gpu=0),
        Stretch(20, 22, gap="queued"),
        Stretch(22, 30, gpu=1),
    ]


def test_to_the_host_and_back_through_a_synchronisation():
    gpu = [Gpu(10, 50, correlation=1), Gpu(80, 90, correlation=2)]
    host = [
        Host(5, 8, correlation=1),
        Host(20, 55, "cudaDeviceSynchronize"),
        Host(70, 75, correlation=2),
    ]
    assert stretches(gpu, host) == [
        Stretch(10, 50, gpu=0),
        Stretch(50, 55, gap="synchronisation"),
        Stretch(55, 75, thread=0),
        Stretch(75, 80, gap="launch_latency"),
        Stretch(80, 90, gpu=1),
    ]


def test_a_host_that_never_waits_is_the_path():
    gpu = [Gpu(10, 50, correlation=1), Gpu(80, 90, correlation=2)]
    host = [Host(5, 8, correlation=1), Host(70, 75, correlation=2)]
    assert stretches(gpu, host) == [
        Stretch(10, 75, thread=0),
        Stretch(75, 80, gap="launch_latency"),
        Stretch(80, 90, gpu=1),
    ]


def test_over_to_the_thread_that_launched_meanwhile():
    gpu = [Gpu(0, 5), Gpu(60, 65, correlation=1, stream=8), Gpu(100, 110, correlation=2)]
    host = [
        Host(50, 58, correlation=1, thread=1),
        Host(80, 98, "step", kind=HostKind.OP),
        Host(90, 95, correlation=2),
    ]
    assert stretches(gpu, host, threads=[0, 0]) == [
        Stretch(0, 58, thread=1),
        Stretch(58, 80, thread=0),
        Stretch(80, 95, thread=0),
        Stretch(95, 100, gap="launch_latency"),
        Stretch(100, 110, gpu=2),
    ]


def test_what_comes_from_nowhere_is_unknown():
    assert stretches([Gpu(0, 5), Gpu(10, 20, stream=8)]) == [
        Stretch(0, 10, gap="unknown"),
        Stretch(10, 20, gpu=1),
    ]
    assert stretches([]) == []


NAMES = (
    "cudaLaunchKernel",
    "cudaGraphLaunch",
    "cudaMemcpy",
    "cudaDeviceSynchronize",
    "cudaStreamWaitEvent",
)
starts, durations, numbers = st.integers(0, 60), st.integers(0, 15), st.integers(-1, 6)
works = st.builds(
    lambda start, duration, correlation, stream, device: Gpu(
        start, start + duration, correlation=correlation, stream=stream, device=device
    ),
    *(starts, durations, numbers, st.integers(7, 8), st.integers(0, 1)),
)
rows = st.builds(
    lambda start, duration, name, correlation, thread, kind: Host(
        start, start + duration, name, correlation, thread=thread, kind=kind
    ),
    *(starts, durations, st.sampled_from(NAMES), numbers, st.integers(0, 2)),
    st.sampled_from([HostKind.CALL, HostKind.CALL, HostKind.OP]),
)


@given(st.lists(works, min_size=1, max_size=12), st.lists(rows, max_size=18))
def test_stretches_join_from_the_first_start_to_the_last_end(gpu, host):
    trace = table(gpu, host, threads=[0, 0, 1])
    found = stretches(gpu, host, threads=[0, 0, 1])
    edges = [trace.gpu.start_ns.min(), *(each.end for each in found)]
    assert [each.start for each in found] == edges[:-1]
    assert edges[-1] == trace.gpu.end_ns.max()
    assert all(each.end > each.start for each in found)
    on_gpu = [each for each in found if each.gpu >= 0]
    assert len({each.gpu for each in on_gpu}) == len(on_gpu)
    assert np.all([trace.gpu.end_ns[each.gpu] == each.end for each in on_gpu])


def edges(gpu, host=()):
    trace = table(gpu, host)
    return work_edges(trace, launch_rows(trace), host_time(trace))


def released(gpu, host, thread=0, threads=(0,)):
    trace = table(gpu, host, threads=threads)
    found = releases(trace, host_time(trace), thread)
    return list(zip(*(column.tolist() for column in found), strict=True))


def test_a_work_follows_the_last_to_end_on_its_stream():
    found = edges(
        [
            Gpu(0, 10),
            Gpu(2, 20, stream=8),
            Gpu(2, 20, device=1),
            Gpu(15, 15),
            Gpu(25, 30),
            Gpu(29, 40),
        ]
    )
    assert found.before.tolist() == [NONE, NONE, NONE, 0, 0, 0]
    assert not found.launched.any()


def test_after_a_wait_of_a_stream_the_last_to_end_anywhere_in_the_process():
    gpu = [Gpu(0, 10), Gpu(2, 20, stream=8), Gpu(2, 24, process=1), Gpu(25, 30, correlation=1)]
    calls = [Host(0, 1, "cudaStreamWaitEvent"), Host(2, 3, correlation=1)]
    assert edges(gpu, calls).before.tolist()[-1] == 1
    assert edges(gpu, calls[1:]).before.tolist()[-1] == 0


def test_later_work_of_a_graph_follows_any_of_it_and_not_the_launch():
    gpu = [
        Gpu(5, 10, correlation=1),
        Gpu(5, 12, correlation=1, stream=8),
        Gpu(13, 20, correlation=1),
    ]
    found = edges(gpu, [Host(0, 30, "cudaGraphLaunch", 1)])
    assert found.before.tolist() == [NONE, NONE, 1]
    assert found.launched.tolist() == [True, True, False]


def test_the_launch_binds_where_it_returned_last():
    gpu = [Gpu(0, 10), Gpu(15, 20, correlation=1), Gpu(20, 30, correlation=2)]
    found = edges(gpu, [Host(5, 12, correlation=1), Host(12, 14, correlation=2)])
    assert found.launched.tolist() == [False, True, False]
    assert found.returned.tolist()[1:] == [12, 14]


def test_a_launch_that_returns_after_its_work_began_binds_from_there():
    found = edges([Gpu(5, 10, correlation=1)], [Host(0, 8, correlation=1)])
    assert (found.launched.tolist(), found.returned.tolist()) == ([True], [5])


def test_a_wait_lets_go_with_the_last_work_that_ended_in_it():
    gpu = [Gpu(0, 10), Gpu(10, 30), Gpu(30, 60), Gpu(20, 40, process=1)]
    sync = "cudaStreamSynchronize"
    assert released(gpu, [Host(5, 50, sync)], threads=[0, 1]) == [(50, 1, NONE, 30)]
    assert released(gpu, [Host(31, 50, sync)], threads=[0, 1]) == []


def test_an_idle_thread_is_let_go_by_another_ones_last_launch():
    op = HostKind.OP
    rows = [
        Host(0, 20, "forward", kind=op),
        Host(30, 80, "backward", kind=op, thread=1),
        Host(35, 40, correlation=1, thread=1),
        Host(50, 70, correlation=2, thread=1),
        Host(90, 99, "step", kind=op),
    ]
    assert released([], rows, threads=[0, 0]) == [(90, NONE, 1, 70)]
    still_busy = [*rows, Host(85, 95, "backward", kind=op, thread=1)]
    assert released([], still_busy, threads=[0, 0]) == []
    assert released([], rows, threads=[0, 1]) == []
    assert released([], rows, thread=1, threads=[0, 0]) == []


def test_nothing_lets_go_of_nothing():
    assert released([], [Host(0, 1)]) == []
    assert edges([]).before.tolist() == []
