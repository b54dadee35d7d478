"""The operators of a case's step, by running the step itself and watching what torch dispatches."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from peakward.lab.levers.model_step import ModelStep
from peakward.lab.levers.prepare import prepare
from peakward.lab.models.op_recorder import OpRecorder
from peakward.levers import optimizer
from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.op_graph import OpGraph


def capture(case: ModelCase) -> OpGraph:
    """The operators of the second step, the first having made the optimiser's state.

    For a CPU nothing is allocated and nothing computed: the tensors are torch's fake ones, which
    know only their shape and type, so any model can be captured anywhere; a mixture's tokens are
    dealt to its experts evenly, for which of them they would choose is in the values. But a decode step
    is run: one token's fake tensors have other strides than real ones (torch 2.13), for which torch
    takes linear layers under autocast as batches of products. For CUDA the step is run on a GPU, for
    fake tensors are not dispatched as CUDA's are: torch takes the norms apart.
    Without a GPU, `prediction.operators.op_graph` states what it would show.

    Raises:
        PeakwardError: what eager dispatch does not see (compiled code, a CUDA graph, a Triton
            kernel); no GPU for a case of CUDA; or values that decide what runs, without any.
    """
    _check(case)
    with _unallocated(case), prepare(case) as step:
        assert isinstance(step, ModelStep)
        step.step()
        with OpRecorder(step.model, name=_path) as recorder:
            step.step(recorder.mark)
    # How operands lie and what is masked follow from the case, and the closed form is silent on them.
    seen = recorder.graph().operators
    return OpGraph.of(msgspec.structs.replace(each, scattered=None, causal=True) for each in seen)


@contextmanager
def _unallocated(case: ModelCase) -> Iterator[None]:
    """Nothing changes for CUDA, nor for a decode step."""
    if case.device == "cuda" or case.workload.pass_ == "decode":
        yield
        return
    shape, workload = case.model, case.workload
    n_visits = workload.batch_size * workload.seq_len * shape.n_active_experts
    with FakeTensorMode(), _Reads(n_visits, shape.n_experts):
        yield


def _check(case: ModelCase) -> None:
    configuration = case.configuration
    if configuration.compile != "none" or configuration.cuda_graphs:
        raise PeakwardError(
            "expected an eager step to capture, got a compiled one or a CUDA graph: "
            "take these levers off"
        )
    if configuration.optimizer in optimizer.OWN:
        raise PeakwardError(
            f"expected an optimiser of torch's operators to capture, got {configuration.optimizer}: "
            "use adamw-fused, which moves as much"
        )
    if case.device == "cuda" and not torch.cuda.is_available():
        raise PeakwardError(
            "expected a GPU to capture a step of CUDA on, got none: take them in closed form "
            "(prediction.operators.op_graph), which needs none"
        )
    scaled = configuration.precision == "fp16-mixed" and case.workload.pass_ == "train_step"
    if case.device == "cpu" and scaled:
        raise PeakwardError(
            "expected a step that no value decides to capture without values, got fp16-mixed, "
            "whose loss scaling looks for infinities: use bf16-mixed, or capture it on CUDA"
        )


def _path(path: str) -> str:
    """With `*` for numbers, and without the wrapper of a recomputed run of blocks."""
    return re.sub(r"\b\d+\b", "*", path).replace("blocks.*.blocks.*", "blocks.*")


class _Reads(TorchDispatchMode):
    """The values that reads of fake scalars give: where an expert's visits end (`kernels/ops/grouped_matmul`)
    as many for each as there can be, and 1 for AdamW's step count, on which no shape depends."""

    def __init__(self, n_visits: int, n_experts: int) -> None:
        super().__init__()
        self._n_visits, self._n_experts = n_visits, n_experts

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is not torch.ops.aten._local_scalar_dense.default:
            return func(*args, **(kwargs or {}))
        (read,) = args
        if read.dtype == torch.int32:  # One of the ends, which lie side by side.
            return (int(read.storage_offset()) + 1) * self._n_visits // self._n_experts
        return 1.0
