"""How long launched work waits, and how much of it waits at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.launch_delay import launch_delays
from peakward.traces.launches import launch_rows
from peakward.traces.table import GpuKind

from .handmade import Gpu, Host, table
from .real import A100, H100_NSYS, RANK_0, real


def delays(gpu, host=()):
    trace = table(gpu, host)
    return launch_delays(trace, launch_rows(trace))


def test_delay_and_queue():
    (found,) = delays(
        [Gpu(100, 150, correlation=1), Gpu(150, 160, correlation=2), Gpu(180, 200, correlation=3)],
        [Host(80, 90, correlation=1), Host(110, 120, correlation=2), Host(170, 190, correlation=3)],
    )
    assert found.n_launches == 3
    assert (found.median_ns, found.p95_ns, found.max_ns) == (10, 30, 30)
    # Within the span, 100 to 200: the second waits from 120 to 150.
    assert found.mean_queue == pytest.approx(0.3)
    assert found.max_queue == 1
    assert found.empty_queue_share == pytest.approx(0.7)


def test_works_that_wait_at_once():
    (found,) = delays(
        [Gpu(0, 40, correlation=1), Gpu(40, 90, correlation=2), Gpu(90, 100, correlation=3)],
        [Host(0, 0, correlation=1), Host(10, 20, correlation=2), Host(20, 40, correlation=3)],
    )
    assert (found.max_queue, found.mean_queue) == (1, pytest.approx(0.7))
    assert found.empty_queue_share == pytest.approx(0.3)


def test_a_graph_brings_all_its_work_at_once_and_delays_once():
    graph = Host(0, 10, "cudaGraphLaunch", 1)
    (found,) = delays([Gpu(10, 20, correlation=1), Gpu(20, 30, correlation=1)], [graph])
    assert (found.n_launches, found.max_ns, found.max_queue) == (1, 0, 1)
    assert found.mean_queue == pytest.approx(0.5)


def test_a_graph_on_two_devices_is_a_launch_of_the_one_that_begins_it():
    graph = Host(0, 10, "cudaGraphLaunch", 1)
    (found,) = delays([Gpu(12, 20, correlation=1), Gpu(20, 30, correlation=1, device=1)], [graph])
    assert (found.device, found.n_launches, found.max_ns) == (0, 1, 2)


def test_a_blocking_copy_waits_from_its_beginning():
    copy = Gpu(50, 60, correlation=1, kind=GpuKind.COPY)
    (found,) = delays([copy], [Host(10, 70, "cudaMemcpy", 1)])
    assert found.max_ns == 40


def test_work_without_a_launch_is_left_out():
    assert delays([Gpu(0, 10)]) == ()
    assert delays([Gpu(0, 10)], [Host(0, 1, correlation=1)]) == ()
    assert delays([]) == ()
    (found,) = delays(
        [Gpu(0, 10), Gpu(20, 30, correlation=1, device=1)], [Host(0, 1, correlation=1)]
    )
    assert (found.device, found.max_ns) == (1, 19)


def test_each_device_has_its_own_span():
    _, found = delays(
        [
            Gpu(0, 100, correlation=1),
            Gpu(20, 40, correlation=2, device=1),
            Gpu(50, 60, correlation=3, device=1),
        ],
        [Host(0, 0, correlation=1), Host(0, 10, correlation=2), Host(20, 30, correlation=3)],
    )
    # Of 20 to 60 the second waits from 30 to 50.
    assert found.mean_queue == pytest.approx(20 / 40)
    assert found.empty_queue_share == pytest.approx(20 / 40)


def test_work_of_no_length():
    (found,) = delays([Gpu(5, 5, correlation=1)], [Host(0, 1, correlation=1)])
    assert (found.max_ns, found.mean_queue, found.empty_queue_share) == (4, 0, 1)


def test_real_traces():
    a100 = real(A100)
    (found,) = launch_delays(a100, launch_rows(a100))
    assert (found.n_launches, found.median_ns, found.max_ns) == (3774, 1956, 964931)
    assert found.empty_queue_share > 0.9
    busier = real(RANK_0)
    (found,) = launch_delays(busier, launch_rows(busier))
    assert (found.median_ns, found.max_queue) == (10831000, 80)


def test_each_device_of_the_nsight_capture():
    trace = real(H100_NSYS)
    launches = launch_rows(trace)
    found = launch_delays(trace, launches)
    assert [each.device for each in found] == [0, 1]
    assert sum(each.n_launches for each in found) == (launches >= 0).sum()


works = st.builds(
    lambda start, duration, correlation: Gpu(start, start + duration, correlation=correlation),
    *(st.integers(0, 50), st.integers(0, 20), st.integers(1, 6)),
)
calls = st.builds(
    lambda start, duration, correlation: Host(start, start + duration, correlation=correlation),
    *(st.integers(0, 50), st.integers(0, 20), st.integers(1, 6)),
)


@given(st.lists(works, max_size=10), st.lists(calls, max_size=10))
def test_queue_against_a_count_of_every_nanosecond(gpu, host):
    trace = table(gpu, host)
    launches = launch_rows(trace)
    for found in launch_delays(trace, launches):
        begin, end = trace.gpu.start_ns.min(), trace.gpu.end_ns.max()
        known = launches >= 0
        since, until = trace.host.end_ns[launches[known]], trace.gpu.start_ns[known]
        depth = [int(((since <= t) & (t < until)).sum()) for t in range(begin, end)]
        assert found.max_queue == max(depth, default=0)
        assert found.mean_queue == pytest.approx(np.mean(depth) if depth else 0)
        assert found.empty_queue_share == pytest.approx(depth.count(0) / len(depth) if depth else 1)
        assert 0 <= found.median_ns <= found.p95_ns <= found.max_ns
