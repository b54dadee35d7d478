"""SwiGLU: the gate's product by torch's operators, or in Peakward's own kernel."""

from typing import TYPE_CHECKING, Any

from peakward.levers.axis import (
    Axis,
    Code,
    CodeHint,
    ComputeCapability,
    KernelSpeed,
    Undo,
    Work,
    not_seen,
)
from peakward.levers.compile import fuses_by_itself
from peakward.records.case import ConfiguredCase, ModelCase, Written
from peakward.records.errors import PeakwardError
from peakward.records.lever import Lever
from peakward.records.op_graph import Operand, OpGraph

if TYPE_CHECKING:
    import torch

    from peakward.prediction.operators.plan import Plan
    from peakward.prediction.operators.writer import Value, Writer


_ACTIVATIONS = ("aten.silu", "aten.sigmoid", "aten.gelu", "aten.tanh")
"""Operators of silu and of GELU, written out or not."""


def _obstacle(case: ConfiguredCase, _capability: ComputeCapability | None) -> str | None:
    if not isinstance(case, ModelCase):
        return None
    shape = case.model
    if shape.gated and shape.activation == "silu":
        return None
    gated = "gated" if shape.gated else "without a gate"
    return f"swiglu fused needs a gated silu, got {shape.activation} {gated}"


def _function(value: Written) -> Any:
    from peakward.kernels.ops.gating.api import IMPLEMENTATIONS

    return IMPLEMENTATIONS[value]


def _to_module(module: "torch.nn.Module", value: Written) -> Undo:
    from peakward.kernels.ops.gated_modules.api import replace_swiglu

    if value == "torch":
        return lambda: None
    replaced = replace_swiglu(module)
    if not replaced.n:
        raise PeakwardError(
            "expected a module with networks that compute down(silu(gate(x)) * up(x)), or with GELU by tanh, "
            f"got {type(module).__name__} without: call peakward.kernels.gated_product in its network"
        )
    return replaced.undo


def _needless(graph: OpGraph, case: ConfiguredCase) -> str | None:
    forward = [each for each in graph.operators if each.phase == "forward"]
    activated = {each.outputs[0].shape for each in forward if each.name in _ACTIVATIONS}
    products = [each.inputs for each in forward if each.name == "aten.mul"]
    if not any(len(each) == 2 and {x.shape for x in each} <= activated for each in products):
        return "needs SwiGLU or GeGLU, got a module that multiplies neither with silu nor with GELU"
    return fuses_by_itself(case, "SwiGLU")


def _forward(on: "Writer", _plan: "Plan", packed: "Value") -> tuple[tuple["Value", ...], "Value"]:
    """Keeps what it reads, and nothing else."""
    *outer, width = packed.operand.shape
    half = Operand(shape=(*outer, width // 2), dtype=packed.operand.dtype)
    return (packed,), on.call("peakward.swiglu", (packed,), (half,))[0]


def _backward(
    on: "Writer", _plan: "Plan", saved: tuple["Value", ...], gradient: "Value"
) -> "Value":
    (packed,) = saved
    return on.call("peakward.swiglu_backward", (gradient, packed), (packed.operand,))[0]


AXIS = Axis(
    name="swiglu",
    default="torch",
    help="torch, or Peakward's own kernel: fused.",
    levers=(
        Lever(
            name="fused-swiglu",
            summary="SwiGLU in one pass each way, of which the projection alone is kept",
            sets=(("swiglu", "fused"),),
            numerics="reordered",
            usual_speedup=1.05,
            device_types=("cuda",),
            vendors=("nvidia",),
            min_compute_capability=(8, 0),
        ),
    ),
    obstacle=_obstacle,
    part="gating",
    function=_function,
    to_module=_to_module,
    hints={
        "fused": CodeHint(
            step="is called in the model: give it as model=, or call peakward.kernels.swiglu or "
            "peakward.kernels.gated_product in its feed-forward network",
            handle="model",
        ),
    },
    code={
        "fused": Code(
            imports=("from peakward.kernels import fuse_swiglu",),
            once=("fuse_swiglu(model)",),
        ),
    },
    called="SwiGLU",
    leaves_alone=("optimizer",),
    unseen=not_seen("a capture has the activation that the module calls"),
    needless=_needless,
    predicted={"cuda": ("fused",)},
    work={"fused": Work(forward=_forward, backward=_backward)},
    kernels={
        "peakward.fp8_swiglu": KernelSpeed(),
        "peakward.fp8_swiglu_backward": KernelSpeed(),
        "peakward.swiglu": KernelSpeed(is_measured=True),
        "peakward.swiglu_backward": KernelSpeed(is_measured=True),
    },
    own_kernels=("fused",),
)
