"""Idle time by cause, for each device and together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.breakdown import breakdown
from peakward.traces.host_time import host_time
from peakward.traces.idle import idle, idle_gaps
from peakward.traces.idle_causes import UNSEEN_NS, IdleCause
from peakward.traces.launches import launch_rows
from peakward.traces.step_spans import work_spans
from peakward.traces.table import GpuKind, HostKind

from .handmade import Gpu, Host, table
from .real import A100, H100_BERT, H100_NSYS, MI300_BERT, RANK_0, RANK_1, communication, real


def causes(of) -> dict[str, int]:
    return {cause: ns for cause, ns in of.by_cause_ns.items() if ns}


@pytest.mark.parametrize("name", [A100, RANK_0, RANK_1, H100_BERT, MI300_BERT, H100_NSYS])
def test_causes_sum_to_the_idle_time_of_a_real_trace(name):
    trace = real(name)
    found = idle(trace, launch_rows(trace))
    times = breakdown(trace, communication(trace))
    for each, time in zip(
        (*found.devices, found.together), (*times.devices, times.together), strict=True
    ):
        assert each.device == time.device
        assert each.idle_ns == time.idle_ns == sum(each.by_cause_ns.values())


def test_an_a100_that_trains_is_idle_for_the_hosts_sake():
    trace = real(A100)
    found = idle(trace, launch_rows(trace)).together
    assert (found.n_gaps, found.longest_ns) == (3480, 15718606)
    assert found.by_cause_ns["host_bound"] / found.idle_ns > 0.98
    assert found.by_cause_ns["unseen"] == found.by_cause_ns["unknown"] == 0


def test_an_inference_that_fetches_its_answer_has_synchronised():
    trace = real(H100_BERT)
    found = idle(trace, launch_rows(trace)).together
    assert found.by_cause_ns["synchronisation"] > 0
    assert found.by_cause_ns["after_synchronisation"] > found.by_cause_ns["synchronisation"]


def test_a_thinned_trace_owns_up_to_what_it_does_not_show():
    trace = real(RANK_0)
    found = idle(trace, launch_rows(trace)).together
    assert found.by_cause_ns["unseen"] / found.idle_ns > 0.5


def test_each_device_and_together():
    trace = table(
        [
            Gpu(0, 10),
            Gpu(30, 40, correlation=1),
            Gpu(0, 10, device=1),
            Gpu(15, 20, device=1),
        ],
        [Host(20, 25, correlation=1)],
    )
    found = idle(trace, launch_rows(trace))
    assert [(d.device, d.n_gaps, d.idle_ns, d.longest_ns) for d in found.devices] == [
        (0, 1, 20, 20),
        (1, 1, 5, 5),
    ]
    assert causes(found.devices[0]) == {"host_bound": 15, "launch_latency": 5}
    assert causes(found.devices[1]) == {"unknown": 5}
    assert (found.together.device, found.together.n_gaps, found.together.longest_ns) == (
        None,
        2,
        20,
    )
    assert causes(found.together) == {"host_bound": 15, "launch_latency": 5, "unknown": 5}
    assert list(found.together.by_cause_ns) == [cause.name.lower() for cause in IdleCause]


def test_no_gpu_work_is_no_idle_time():
    found = idle(table(host=[Host(0, 1)]), launch_rows(table(host=[Host(0, 1)])))
    assert found.devices == ()
    assert found.together.idle_ns == found.together.longest_ns == 0


START, END = 100, 200
BEFORE = (Gpu(50, START, correlation=1), Host(10, 12, correlation=1))


def pieces(*rows, threads=(0,)) -> dict[str, int]:
    """The pieces, that are not 0, of the one gap from 100 to 200."""
    rows = (*BEFORE, *rows)
    trace = table(
        [row for row in rows if isinstance(row, Gpu)],
        [row for row in rows if isinstance(row, Host)],
        threads=threads,
    )
    found = idle_gaps(trace, launch_rows(trace), host_time(trace), work_spans(trace.gpu))[0]
    assert (found.start_ns.tolist(), found.end_ns.tolist()) == ([START], [END])
    (row,) = found.pieces_ns.tolist()
    return {cause.name: row[cause] for cause in IdleCause if row[cause]}


def next_work(launched=(180, 190), **call):
    return Gpu(END, 210, correlation=2), Host(*launched, correlation=2, **call)


def test_host_bound_until_the_launch_returns():
    assert pieces(*next_work()) == {"HOST_BOUND": 90, "LAUNCH_LATENCY": 10}


def test_host_bound_where_the_work_starts_before_its_launch_returns():
    assert pieces(*next_work((180, 230))) == {"HOST_BOUND": 100}


def test_host_bound_where_the_launch_was_under_way():
    assert pieces(*next_work((90, 150))) == {"HOST_BOUND": 50, "LAUNCH_LATENCY": 50}


def test_queued_where_the_launch_returned_before():
    assert pieces(*next_work((20, 30))) == {"QUEUED": 100}


def test_unknown_without_a_launch():
    assert pieces(Gpu(END, 210)) == {"UNKNOWN": 100}


def test_of_works_that_start_at_once_one_with_a_launch_counts():
    assert pieces(Gpu(END, 205, stream=8), *next_work()) == {"HOST_BOUND": 90, "LAUNCH_LATENCY": 10}


def test_a_synchronisation_in_which_the_gpu_ran_dry():
    sync = Host(60, 130, "cudaDeviceSynchronize")
    assert pieces(sync, *next_work()) == {
        "SYNCHRONISATION": 30,
        "AFTER_SYNCHRONISATION": 60,
        "LAUNCH_LATENCY": 10,
    }


def test_a_synchronisation_of_an_idle_gpu_is_blamed_for_itself_alone():
    sync = Host(120, 130, "cudaStreamSynchronize")
    assert pieces(sync, *next_work()) == {
        "SYNCHRONISATION": 10,
        "HOST_BOUND": 80,
        "LAUNCH_LATENCY": 10,
    }


@pytest.mark.parametrize("returned", [100, 99])
def test_a_synchronisation_over_by_then_is_not_blamed(returned):
    sync = Host(60, returned, "cudaStreamSynchronize")
    assert pieces(sync, *next_work()) == {"HOST_BOUND": 90, "LAUNCH_LATENCY": 10}


def test_a_synchronisation_counts_on_the_threads_that_launched_around_the_gap():
    sync = Host(60, 130, "cudaDeviceSynchronize")
    work, call = next_work()
    on_another = call._replace(thread=1)
    blamed = {"SYNCHRONISATION": 30, "AFTER_SYNCHRONISATION": 60, "LAUNCH_LATENCY": 10}
    assert pieces(sync, work, on_another, threads=[0, 0]) == blamed
    assert pieces(sync._replace(thread=1), work, on_another, threads=[0, 0]) == blamed
    assert pieces(sync._replace(thread=1), work, call, threads=[0, 0]) == {
        "HOST_BOUND": 90,
        "LAUNCH_LATENCY": 10,
    }


def test_data_loading():
    load = Host(110, 150, "enumerate(DataLoader)#_It.__next__", kind=HostKind.RANGE)
    assert pieces(load, *next_work()) == {
        "DATA_LOADING": 40,
        "HOST_BOUND": 50,
        "LAUNCH_LATENCY": 10,
    }


def test_the_profiler_goes_before_data_loading_and_that_before_synchronisation():
    assert pieces(
        Host(60, 170, "cudaDeviceSynchronize"),
        Host(110, 150, "DataLoader", kind=HostKind.RANGE),
        Host(115, 120, "Buffer Flush", kind=HostKind.OVERHEAD),
        *next_work(),
    ) == {
        "PROFILER": 5,
        "DATA_LOADING": 35,
        "SYNCHRONISATION": 30,
        "AFTER_SYNCHRONISATION": 20,
        "LAUNCH_LATENCY": 10,
    }


def test_a_blocking_copy_is_launched_when_it_begins():
    work, call = next_work((150, 230), name="cudaMemcpy")
    work = work._replace(kind=GpuKind.COPY)
    assert pieces(work, call) == {"HOST_BOUND": 50, "LAUNCH_LATENCY": 50}


def test_the_first_work_of_a_graph_and_its_later_ones():
    work, call = next_work(name="cudaGraphLaunch")
    assert pieces(work, call) == {"HOST_BOUND": 90, "GRAPH_START": 10}
    first = Gpu(40, 60, correlation=2)
    early = call._replace(start=30, end=150)
    assert pieces(first, work, early) == {"QUEUED": 100}


ON_ANOTHER_STREAM = Gpu(60, START, correlation=3, stream=9), Host(13, 14, correlation=3)
ON_ANOTHER_DEVICE = Gpu(60, 170, correlation=3, device=1), Host(13, 14, correlation=3)


def test_a_wait_of_a_stream_right_before_the_launch():
    wait = Host(20, 21, "cudaStreamWaitEvent")
    queued = next_work((30, 40))
    after = (queued[0]._replace(stream=8), queued[1])
    assert pieces(wait, *ON_ANOTHER_STREAM, *after) == {"STREAM_WAIT": 100}
    between = Host(22, 23)
    assert pieces(wait, between, *ON_ANOTHER_STREAM, *after) == {"QUEUED": 100}
    elsewhere = wait._replace(thread=1)
    assert pieces(elsewhere, *ON_ANOTHER_STREAM, *after, threads=[0, 0]) == {"QUEUED": 100}


@pytest.mark.parametrize("launched", [(30, 40), (110, 120)])
def test_a_wait_is_for_another_device_only_while_that_runs(launched):
    wait = Host(20, 21, "cudaStreamWaitEvent")
    since = max(launched[1], START)
    rest = "QUEUED" if since == START else "LAUNCH_LATENCY"
    wanted = {"STREAM_WAIT": 170 - since, rest: 30, "HOST_BOUND": since - START}
    found = pieces(wait, *ON_ANOTHER_DEVICE, *next_work(launched))
    assert found == {cause: ns for cause, ns in wanted.items() if ns}


def test_a_wait_while_nothing_else_runs_is_none_for_another_stream():
    wait = Host(20, 21, "cudaStreamWaitEvent")
    assert pieces(wait, *next_work((30, 40))) == {"QUEUED": 100}
    assert pieces(wait, *next_work()) == {"HOST_BOUND": 90, "LAUNCH_LATENCY": 10}


@pytest.mark.parametrize("name", ["cudaLaunchKernel", "cudaGraphLaunch"])
@pytest.mark.parametrize("waits", [(), (Host(14, 15, "cudaStreamWaitEvent"),)])
@pytest.mark.parametrize("launched", [(20, 30), (101, 110)])
def test_longer_than_any_start_takes_is_unseen(launched, waits, name):
    """Of a graph too, and after a wait for a stream on which nothing runs."""
    at = max(launched[1], START) + UNSEEN_NS
    call = Host(*launched, name, correlation=2)

    def causes(start):
        gpu = [BEFORE[0], Gpu(start, start + 1, correlation=2)]
        trace = table(gpu, [BEFORE[1], *waits, call])
        (row,) = idle_gaps(trace, launch_rows(trace), host_time(trace), work_spans(trace.gpu))[
            0
        ].pieces_ns.tolist()
        return {cause.name for cause in IdleCause if row[cause]} - {"HOST_BOUND"}

    assert causes(at) <= {"QUEUED", "LAUNCH_LATENCY", "GRAPH_START"}
    assert causes(at + 1) == {"UNSEEN"}


NAMES = (
    "cudaLaunchKernel",
    "cudaGraphLaunch",
    "cudaMemcpy",
    "cudaDeviceSynchronize",
    "cudaStreamWaitEvent",
)
starts, durations, numbers = st.integers(0, 80), st.integers(0, 20), st.integers(-1, 8)
works = st.builds(
    lambda start, duration, correlation, stream, device: Gpu(
        start, start + duration, correlation=correlation, stream=stream, device=device
    ),
    *(starts, durations, numbers, st.integers(7, 8), st.integers(0, 1)),
)
calls = st.builds(
    lambda start, duration, name, correlation, thread: Host(
        start, start + duration, name, correlation, thread=thread
    ),
    *(starts, durations, st.sampled_from(NAMES), numbers, st.integers(0, 2)),
)
others = st.builds(
    lambda start, duration, kind, thread: Host(
        start, start + duration, "DataLoader", kind=kind, thread=thread
    ),
    *(starts, durations, st.sampled_from(HostKind), st.integers(0, 2)),
)


@given(st.lists(works, min_size=1, max_size=12), st.lists(calls | others, max_size=15))
def test_pieces_sum_to_the_gap_and_none_is_negative(gpu, host):
    trace = table(gpu, host, threads=[0, 0, 1])
    launches = launch_rows(trace)
    for device in np.unique(trace.gpu.device):
        found = idle_gaps(trace, launches, host_time(trace), work_spans(trace.gpu))[int(device)]
        assert np.all(found.pieces_ns >= 0)
        assert found.pieces_ns.sum(axis=1).tolist() == (found.end_ns - found.start_ns).tolist()
        assert trace.gpu.start_ns[found.next_work].tolist() == found.end_ns.tolist()
        assert np.all(trace.gpu.device[found.next_work] == device)
