"""Work finds the call that launched it, by correlation within its process."""

import numpy as np
import pytest

from peakward.traces.launches import first_of_launch, launch_rows
from peakward.traces.table import NONE, GpuKind, HostKind

from .handmade import Gpu, Host, table
from .real import A100, H100_BERT, H100_NSYS, MI300_BERT, RANK_0, RANK_1, real


def launches(gpu, host, **others):
    return launch_rows(table(gpu, host, **others)).tolist()


def test_by_correlation():
    host = [Host(0, 2, correlation=5), Host(2, 4, correlation=6)]
    assert launches([Gpu(5, 6, correlation=6), Gpu(7, 8, correlation=5)], host) == [1, 0]


def test_zero_and_unknown_correlations_tie_nothing():
    host = [Host(0, 1, correlation=0), Host(1, 2), Host(2, 3, correlation=9)]
    assert (
        launches([Gpu(5, 6, correlation=0), Gpu(6, 7), Gpu(8, 9, correlation=4)], host)
        == [NONE] * 3
    )


def test_only_calls_launch():
    host = [Host(0, 9, "aten::mm", 3, HostKind.OP), Host(1, 2, correlation=3)]
    assert launches([Gpu(5, 6, correlation=3)], host) == [1]
    assert launches([Gpu(5, 6, correlation=3)], host[:1]) == [NONE]


def test_the_same_number_in_another_process_is_another_launch():
    host = [Host(0, 1, correlation=3), Host(1, 2, correlation=3, thread=1)]
    gpu = [Gpu(5, 6, correlation=3, process=1), Gpu(6, 7, correlation=3, process=0)]
    assert launches(gpu, host, threads=[0, 1]) == [1, 0]
    assert launches(gpu, host[:1], threads=[0]) == [NONE, 0]


def test_of_several_calls_the_launch():
    host = [Host(0, 1, correlation=3), Host(1, 2, "cudaStreamIsCapturing", 3)]
    assert launches([Gpu(5, 6, correlation=3)], host) == [0]


def test_of_several_launches_the_last_begun_before_the_work():
    host = [Host(0, 1, correlation=3), Host(10, 11, correlation=3), Host(20, 21, correlation=3)]
    gpu = [Gpu(5, 6, correlation=3), Gpu(10, 12, correlation=3), Gpu(99, 100, correlation=3)]
    assert launches(gpu, host) == [0, 1, 2]


def test_of_several_launches_none_before_the_work():
    host = [Host(10, 11, correlation=3), Host(20, 21, correlation=3)]
    assert launches([Gpu(5, 6, correlation=3)], host) == [NONE]


def test_a_lone_call_launches_whatever_the_clocks_say():
    assert launches([Gpu(5, 6, correlation=3)], [Host(7, 8, correlation=3)]) == [0]


def test_first_of_each_launch():
    host = [Host(0, 1, "cudaGraphLaunch", 3), Host(1, 2, correlation=4)]
    trace = table([Gpu(at, at + 1, correlation=c) for at, c in enumerate((3, 3, 4, 9, 9), 5)], host)
    assert first_of_launch(launch_rows(trace)).tolist() == [True, False, True, True, True]


@pytest.mark.parametrize("name", [A100, RANK_0, RANK_1, H100_BERT, MI300_BERT])
def test_every_work_of_the_torch_traces_has_its_launch(name):
    trace = real(name)
    found = launch_rows(trace)
    assert found.dtype == np.int32
    assert np.all(found != NONE)
    assert np.all(trace.host.correlation[found] == trace.gpu.correlation)
    assert np.all(trace.gpu.start_ns >= trace.host.start_ns[found])


def test_kernels_of_the_nsight_capture_with_their_launch_in_it():
    trace = real(H100_NSYS)
    kernels = trace.gpu.kind == GpuKind.KERNEL
    assert (kernels.sum(), (launch_rows(trace)[kernels] != NONE).sum()) == (4010, 3986)
