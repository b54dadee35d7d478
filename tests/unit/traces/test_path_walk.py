"""The path back through GPUs and host, step by step."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.host_time import host_time
from peakward.traces.launches import launch_rows
from peakward.traces.path_walk import Stretch, walk
from peakward.traces.step_spans import work_spans
from peakward.traces.table import HostKind

from .handmade import Gpu, Host, table


def path(gpu, host=(), threads=(0,)):
    trace = table(gpu, host, threads=threads)
    return walk(trace, launch_rows(trace), host_time(trace), work_spans(trace.gpu))[::-1]


def test_along_a_stream():
    assert path([Gpu(10, 20), Gpu(22, 30)]) == [
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
    assert path(gpu, host) == [
        Stretch(10, 50, gpu=0),
        Stretch(50, 55, gap="synchronisation"),
        Stretch(55, 75, thread=0),
        Stretch(75, 80, gap="launch_latency"),
        Stretch(80, 90, gpu=1),
    ]


def test_a_host_that_never_waits_is_the_path():
    gpu = [Gpu(10, 50, correlation=1), Gpu(80, 90, correlation=2)]
    host = [Host(5, 8, correlation=1), Host(70, 75, correlation=2)]
    assert path(gpu, host) == [
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
    assert path(gpu, host, threads=[0, 0]) == [
        Stretch(0, 58, thread=1),
        Stretch(58, 80, thread=0),
        Stretch(80, 95, thread=0),
        Stretch(95, 100, gap="launch_latency"),
        Stretch(100, 110, gpu=2),
    ]


def test_what_comes_from_nowhere_is_unknown():
    assert path([Gpu(0, 5), Gpu(10, 20, stream=8)]) == [
        Stretch(0, 10, gap="unknown"),
        Stretch(10, 20, gpu=1),
    ]
    assert path([]) == []


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
    found = path(gpu, host, threads=[0, 0, 1])
    edges = [trace.gpu.start_ns.min(), *(each.end for each in found)]
    assert [each.start for each in found] == edges[:-1]
    assert edges[-1] == trace.gpu.end_ns.max()
    assert all(each.end > each.start for each in found)
    on_gpu = [each for each in found if each.gpu >= 0]
    assert len({each.gpu for each in on_gpu}) == len(on_gpu)
    assert np.all([trace.gpu.end_ns[each.gpu] == each.end for each in on_gpu])
