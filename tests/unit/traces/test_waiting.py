"""Where the host waited for the GPU."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.launches import launch_rows
from peakward.traces.table import GpuKind, HostKind
from peakward.traces.waiting import launch_delays, waiting

from .handmade import Gpu, Host, table
from .real import A100, H100_BERT, H100_NSYS, MI300_BERT, RANK_0, real

OP, RANGE, PYTHON = HostKind.OP, HostKind.RANGE, HostKind.PYTHON


def test_what_is_around_and_what_the_gpu_did():
    (found,) = waiting(
        table(
            [Gpu(5, 20, correlation=1)],
            [
                Host(0, 100, "ProfilerStep#3", kind=RANGE),
                Host(1, 90, "loss", kind=RANGE),
                Host(2, 80, "train.py(12): step", kind=PYTHON),
                Host(3, 70, "torch/cuda/__init__.py(985): synchronize", kind=PYTHON),
                Host(4, 60, "<built-in method item of Tensor>", kind=PYTHON),
                Host(5, 55, "aten::item", kind=OP),
                Host(6, 54, "aten::_local_scalar_dense", kind=OP),
                Host(7, 8, "aten::empty", kind=OP),
                Host(10, 50, "cudaStreamSynchronize_v3020"),
                Host(11, 49, "aten::elsewhere", kind=OP, thread=1),
            ],
            threads=[0, 0],
        )
    )
    assert found.call == "cudaStreamSynchronize"
    assert (found.operator, found.range) == ("aten::_local_scalar_dense", "loss")
    assert found.python == "train.py(12): step"
    assert (found.n, found.sum_ns, found.gpu_idle_ns, found.longest_ns) == (1, 40, 30, 40)


def test_torchs_own_line_where_there_is_no_other():
    (found,) = waiting(
        table(
            host=[
                Host(0, 9, "torch/cuda/__init__.py(985): synchronize", kind=PYTHON),
                Host(1, 8, "nn.Module: Block_0", kind=PYTHON),
                Host(2, 7, "cudaDeviceSynchronize"),
            ]
        )
    )
    assert found.python == "torch/cuda/__init__.py(985): synchronize"
    assert found.operator is found.range is None


def test_calls_at_one_place_are_counted_together_the_longest_first():
    trace = table(
        host=[
            Host(0, 5, "cudaEventSynchronize"),
            Host(10, 12, "cudaEventSynchronize"),
            Host(20, 40, "aten::copy_", kind=OP),
            Host(21, 39, "cudaMemcpy"),
            Host(50, 60, "cudaMemcpyAsync"),
        ]
    )
    copy, event = waiting(trace)
    assert (copy.call, copy.operator, copy.n, copy.sum_ns) == ("cudaMemcpy", "aten::copy_", 1, 18)
    assert (event.n, event.sum_ns, event.longest_ns, event.gpu_idle_ns) == (2, 7, 5, 7)


def test_only_the_gpus_of_the_own_process_count():
    (found,) = waiting(
        table(
            [Gpu(0, 4), Gpu(2, 9, process=1), Gpu(3, 6, device=1)],
            [Host(0, 10, "cudaDeviceSynchronize")],
        )
    )
    assert found.gpu_idle_ns == 4


def test_no_waiting():
    assert waiting(table()) == waiting(table(host=[Host(0, 1)])) == ()


def test_an_inference_that_fetches_its_answer():
    answer = "transformers/modeling_attn_mask_utils.py(429): _prepare_4d_attention_mask_for_sdpa"
    nvidia = next(w for w in waiting(real(H100_BERT)) if w.call == "cudaStreamSynchronize")
    assert (nvidia.operator, nvidia.range) == ("aten::_local_scalar_dense", "ProfilerStep#6")
    assert (nvidia.python, nvidia.n, nvidia.sum_ns, nvidia.gpu_idle_ns) == (answer, 1, 7640, 5400)
    amd = next(w for w in waiting(real(MI300_BERT)) if w.call == "hipMemcpyWithStream")
    assert (amd.operator, amd.python, amd.n) == ("aten::_local_scalar_dense", answer, 1)


def test_the_nsight_capture_waits_33_times():
    (found,) = waiting(real(H100_NSYS))
    assert (found.call, found.n, found.sum_ns) == ("cudaStreamSynchronize", 33, 324534733)


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
