"""Sorting the host's rows: waiting for the GPU, loading data, the profiler's own time."""

from peakward.traces.host_time import host_time
from peakward.traces.intervals import total
from peakward.traces.table import HostKind

from .handmade import Host, table


def test_waiting_is_synchronisation_and_blocking_copies():
    names = [
        "cudaStreamSynchronize",
        "cudaMemcpy",
        "cudaMemcpyAsync",
        "cudaEventQuery",
        "hipMemcpyWithStream",
    ]
    trace = table(host=[Host(at, at + 1, name) for at, name in enumerate(names)])
    found = host_time(trace)
    assert found.waiting.tolist() == [True, True, False, False, True]
    assert total(found.waits([0])) == 3
    assert total(found.waits([1])) == 0


def test_loading_by_name_and_kind():
    rows = [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", HostKind.RANGE, True),
        ("data_loading", HostKind.RANGE, True),
        ("DataLoader.next", HostKind.OP, True),
        ("torch/utils/data/dataloader.py(701): __next__", HostKind.PYTHON, True),
        ("torch/utils/data/dataloader.py(1327): _next_data", HostKind.PYTHON, False),
        ("aten::mm", HostKind.OP, False),
        ("dataload", HostKind.CALL, False),
    ]
    trace = table(host=[Host(at, at + 1, n, kind=k) for at, (n, k, _) in enumerate(rows)])
    assert host_time(trace).loading.tolist() == [expected for *_, expected in rows]


def test_the_profilers_time_of_a_process_or_of_none():
    own, others, unowned = 0, 1, 2
    overhead = {"name": "Buffer Flush", "kind": HostKind.OVERHEAD}
    trace = table(
        host=[
            Host(0, 1),
            Host(0, 1, thread=others),
            Host(1, 3, **overhead),
            Host(10, 14, **overhead, thread=others),
            Host(20, 28, **overhead, thread=unowned),
        ],
        threads=[own, others, unowned],
    )
    found = host_time(trace)
    assert total(found.profiles(own)) == 2 + 8
    assert total(found.profiles(others)) == 4 + 8
