"""Where the host waited for the GPU."""

from peakward.traces.sync import waiting
from peakward.traces.table import HostKind

from .handmade import Gpu, Host, table
from .real import H100_BERT, H100_NSYS, MI300_BERT, real

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
