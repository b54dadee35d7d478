"""What the host called."""

from peakward.records.profile import HostCall
from peakward.traces.host_calls import host_calls
from peakward.traces.table import HostKind

from .handmade import Host, table


def python(start, end, name):
    return Host(start, end, name, kind=HostKind.PYTHON)


def test_calls_by_plain_name_the_longest_first():
    rows = [
        Host(0, 10, "cudaFree"),
        Host(20, 25, "cudaMalloc_v3020"),
        Host(30, 60, "cudaFree"),
        Host(0, 90, "aten::add", kind=HostKind.OP),
    ]
    found = host_calls(table(host=rows))
    assert found.calls == (
        HostCall(name="cudaFree", n=2, sum_ns=40, longest_ns=30),
        HostCall(name="cudaMalloc", n=1, sum_ns=5, longest_ns=5),
    )
    assert (found.n_python, found.collections) == (0, None)


def test_collections_as_torch_names_them():
    rows = [
        python(0, 50, "<built-in function collect>"),
        python(0, 90, "train.py(12): step"),
        python(60, 70, "<built-in method collect_all of object at 0x7f>"),
    ]
    found = host_calls(table(host=rows))
    assert found.n_python == 3
    assert found.collections == HostCall(name="gc.collect", n=1, sum_ns=50, longest_ns=50)


def test_of_nothing_nothing():
    assert host_calls(table()).calls == ()
