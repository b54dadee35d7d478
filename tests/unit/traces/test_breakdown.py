"""Busy, idle and overlap: by hand, and to the nanosecond on real traces."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.breakdown import breakdown, collectives, transfers
from peakward.traces.table import Direction, GpuKind

from .handmade import Gpu, table
from .real import A100, H100_BERT, H100_NSYS, MI300_BERT, RANK_0, RANK_1, communication, real

FIGURES = {
    A100: (660551005, 157500014, 503050991, 115655847, 46876493, 2653498, 7317025),
    RANK_0: (1222847000, 547656000, 675191000, 210320000, 396199000, 1325000, 59216000),
    RANK_1: (1231186000, 580050000, 651136000, 271973000, 379053000, 16504000, 75530000),
}
COUNTS = {A100: (3774, 2700), RANK_0: (1204, 1154), RANK_1: (1154, 1104)}


def figures(of) -> tuple[int, ...]:
    return (
        of.span_ns,
        of.busy_ns,
        of.idle_ns,
        of.compute_ns,
        of.communication_ns,
        of.memory_ns,
        of.communication_under_compute_ns,
    )


@pytest.mark.parametrize("name", FIGURES)
def test_a_real_trace_to_the_nanosecond(name):
    trace = real(name)
    found = breakdown(trace, communication(trace))
    assert figures(found.together) == FIGURES[name]
    assert figures(found.devices[0]) == FIGURES[name]
    assert found.span_ns == found.together.span_ns
    n_kernels = found.together.n_compute + found.together.n_communication
    n_rows = n_kernels + found.together.n_copies + found.together.n_sets
    assert (n_rows, n_kernels) == COUNTS[name]


def test_two_gpus_of_one_capture_by_their_kernels():
    trace = real(H100_NSYS)
    kernels = trace.gpu.kind == GpuKind.KERNEL
    only = breakdown(_rows(trace, kernels), np.zeros(kernels.sum(), dtype=bool))
    assert [(d.n_compute, d.busy_ns, d.span_ns) for d in only.devices] == [
        (1993, 270863484, 299848812),
        (2017, 264324724, 298661551),
    ]


@pytest.mark.parametrize("name", [H100_BERT, MI300_BERT])
def test_the_same_inference_on_two_makers_gpus(name):
    trace = real(name)
    found = breakdown(trace, communication(trace)).together
    assert (found.n_compute, found.n_communication, found.n_copies) == (60, 0, 1)


def _rows(trace, which):
    rows = np.flatnonzero(which)
    gpu = trace.gpu
    return table(
        [Gpu(int(gpu.start_ns[at]), int(gpu.end_ns[at]), device=int(gpu.device[at])) for at in rows]
    )


def test_overlap_and_exposure_by_hand():
    trace = table(
        [
            Gpu(0, 10),
            Gpu(5, 12, stream=8),
            Gpu(8, 20, "nccl", stream=9),
            Gpu(11, 25, kind=GpuKind.COPY, stream=10),
            Gpu(30, 31, kind=GpuKind.SET),
        ]
    )
    found = breakdown(trace, communication(trace)).together
    assert (found.span_ns, found.busy_ns, found.idle_ns) == (31, 26, 5)
    assert (found.compute_ns, found.communication_ns, found.memory_ns) == (12, 12, 15)
    assert found.communication_under_compute_ns == 4
    assert found.memory_under_compute_ns == 1
    assert found.exposed_communication_ns == 8
    assert found.exposed_memory_ns == 6
    assert (found.n_compute, found.n_communication, found.n_copies, found.n_sets) == (2, 1, 1, 1)


def test_devices_are_apart_and_add_up():
    trace = table([Gpu(0, 10), Gpu(5, 25, device=3), Gpu(30, 40)])
    found = breakdown(trace, communication(trace))
    assert [(d.device, d.span_ns, d.busy_ns, d.idle_ns) for d in found.devices] == [
        (0, 40, 20, 20),
        (3, 20, 20, 0),
    ]
    assert (found.together.device, found.together.span_ns, found.together.busy_ns) == (None, 60, 40)
    assert found.span_ns == 40


def test_no_gpu_work_is_no_time():
    found = breakdown(table(), np.zeros(0, dtype=bool))
    assert found.devices == ()
    assert figures(found.together) == (0,) * 7
    assert found.span_ns == 0


rows = st.builds(
    lambda start, duration, kind, nccl, device, stream: Gpu(
        start, start + duration, "nccl" if nccl else "k", kind=kind, device=device, stream=stream
    ),
    st.integers(0, 60),
    st.integers(0, 15),
    st.sampled_from(GpuKind),
    st.booleans(),
    st.integers(0, 1),
    st.integers(7, 9),
)


@given(st.lists(rows, max_size=15))
def test_the_parts_make_up_the_whole(work):
    trace = table(work)
    found = breakdown(trace, communication(trace))
    for each in (*found.devices, found.together):
        exposed = each.exposed_communication_ns + each.exposed_memory_ns
        assert each.compute_ns + exposed == each.busy_ns
        assert 0 <= each.busy_ns <= each.span_ns
        assert each.communication_under_compute_ns <= min(each.compute_ns, each.communication_ns)
        assert each.exposed_memory_ns <= each.memory_ns


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


UP = Direction.HOST_TO_DEVICE


def copy(start, end, n_bytes, direction=UP, **others):
    return Gpu(start, end, kind=GpuKind.COPY, n_bytes=n_bytes, direction=direction, **others)


def test_by_direction_the_longest_first():
    up, down, sets = transfers(
        table(
            [
                copy(0, 10, 100),
                copy(5, 25, 300, stream=8),
                copy(5, 15, 100, device=1),
                copy(30, 39, 9, Direction.DEVICE_TO_HOST),
                Gpu(50, 52, kind=GpuKind.SET, n_bytes=64),
                Gpu(60, 70),
            ]
        )
    )
    assert (up.what, up.n, up.n_bytes, up.largest_bytes) == ("host_to_device", 3, 500, 300)
    assert (up.sum_ns, up.united_ns) == (40, 35)
    assert up.bytes_per_s == pytest.approx(500 / 40e-9)
    assert (down.what, down.n, down.bytes_per_s) == ("device_to_host", 1, pytest.approx(1e9))
    assert (sets.what, sets.n, sets.n_bytes, sets.sum_ns) == ("set", 1, 64, 2)


def test_unknown_sizes_stay_out_of_the_bandwidth():
    (found,) = transfers(table([copy(0, 10, -1), copy(20, 30, 50)]))
    assert (found.n, found.n_bytes, found.sum_ns) == (2, 50, 20)
    assert found.bytes_per_s == pytest.approx(5e9)
    (found,) = transfers(table([copy(0, 10, -1)]))
    assert (found.n_bytes, found.largest_bytes, found.bytes_per_s) == (0, None, None)


def test_copies_of_no_length_have_no_bandwidth():
    (found,) = transfers(table([copy(0, 0, 8)]))
    assert (found.n_bytes, found.bytes_per_s) == (8, None)


def test_no_copies():
    assert transfers(table([Gpu(0, 1)])) == transfers(table()) == ()


def test_a_real_trace():
    copies, sets = transfers(real(A100))
    assert (copies.what, copies.n, copies.n_bytes) == ("device_to_device", 960, 307323096)
    assert (copies.sum_ns, copies.largest_bytes) == (2262781, 9437184)
    assert (sets.n, sets.n_bytes, sets.sum_ns) == (114, 409141005, 390717)
