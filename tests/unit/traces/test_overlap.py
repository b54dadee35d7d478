"""Communication by kernel, and what of it no compute hides."""

import pytest

from peakward.traces.breakdown import breakdown
from peakward.traces.overlap import collectives

from .handmade import Gpu, table
from .real import A100, H100_NSYS, RANK_0, RANK_1, communication, real


def test_exposed_by_name_on_the_device_that_it_runs_on():
    trace = table(
        [
            Gpu(0, 10, "gemm"),
            Gpu(5, 20, "nccl reduce", stream=9),
            Gpu(18, 26, "nccl reduce", stream=10),
            Gpu(5, 20, "nccl reduce", device=1),
            Gpu(2, 8, "nccl gather", stream=9),
        ]
    )
    reduce, gather = collectives(trace, communication(trace))
    assert (reduce.name, reduce.n, reduce.sum_ns) == ("nccl reduce", 3, 38)
    assert (reduce.united_ns, reduce.exposed_ns, reduce.longest_ns) == (36, 31, 15)
    assert (gather.n, gather.united_ns, gather.exposed_ns) == (1, 6, 0)


def test_no_communication():
    trace = table([Gpu(0, 1)])
    assert collectives(trace, communication(trace)) == ()


@pytest.mark.parametrize("name", [A100, RANK_0, RANK_1, H100_NSYS])
def test_exposed_communication_of_real_traces_adds_up(name):
    trace = real(name)
    found = collectives(trace, communication(trace))
    whole = breakdown(trace, communication(trace)).together
    assert sum(each.exposed_ns for each in found) == whole.exposed_communication_ns
    assert sum(each.n for each in found) == whole.n_communication


def test_all_reduce_of_an_a100():
    trace = real(A100)
    reduce, broadcast = collectives(trace, communication(trace))
    assert reduce.name.startswith("ncclKernel_AllReduce")
    assert (reduce.n, reduce.sum_ns, reduce.exposed_ns) == (15, 46762159, 39445134)
    assert (broadcast.n, broadcast.exposed_ns) == (6, 114334)
