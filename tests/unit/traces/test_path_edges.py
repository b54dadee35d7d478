"""What each work followed, and what let a thread go."""

from peakward.traces.host_time import host_time
from peakward.traces.launches import launch_rows
from peakward.traces.path_edges import releases, work_edges
from peakward.traces.table import NONE, HostKind

from .handmade import Gpu, Host, table


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
