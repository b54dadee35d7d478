"""RoPE: queries and keys turned by torch's operators, or in Peakward's own kernel."""

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


def _obstacle(case: ConfiguredCase, _capability: ComputeCapability | None) -> str | None:
    if not isinstance(case, ModelCase) or case.model.positions == "rope":
        return None
    return f"rope fused needs positions of rope, got {case.model.positions}"


def _function(value: Written) -> Any:
    from peakward.kernels.ops.rotation.api import IMPLEMENTATIONS

    return IMPLEMENTATIONS[value]


def _to_module(module: "torch.nn.Module", value: Written) -> Undo:
    from peakward.kernels.ops.rotation_functions.api import replace_rope

    if value == "torch":
        return lambda: None
    replaced = replace_rope(module)
    if not replaced.n:
        raise PeakwardError(
            "expected a module whose attention calls a function of its file that turns queries and keys, of "
            f"arguments cos and sin, got {type(module).__name__} without: call "
            "peakward.kernels.rope in its attention"
        )
    return replaced.undo


def _needless(graph: OpGraph, case: ConfiguredCase) -> str | None:
    forward = {each.name for each in graph.operators if each.phase == "forward"}
    if forward.isdisjoint(("aten.cat", "aten.stack")):
        return "needs RoPE, got a module whose operators put no parts of heads together"
    return fuses_by_itself(case, "RoPE")


def _forward(on: "Writer", plan: "Plan", packed: "Value") -> "Value":
    """In place where no gradient is asked for, else a new tensor."""
    if plan.differentiated:
        return on.call("peakward.rope", (packed, *_angles(on, plan)), (packed.operand,))[0]
    on.timed("peakward.rope_", packed, *_angles(on, plan), output=packed.operand)
    return packed


def _backward(on: "Writer", plan: "Plan", gradient: "Value") -> "Value":
    return on.call("peakward.rope", (gradient, *_angles(on, plan)), (gradient.operand,))[0]


def _angles(on: "Writer", plan: "Plan") -> tuple["Value", "Value"]:
    """Cosines and sines (seq_len, head_dim / 2), in the residual stream's type."""
    angle = on.parameter(Operand(shape=(plan.seq, plan.shape.head_dim // 2), dtype=plan.stored))
    return angle, angle


AXIS = Axis(
    name="rope",
    default="torch",
    help="torch, or Peakward's own kernel: fused.",
    levers=(
        Lever(
            name="fused-rope",
            summary="queries and keys turned in one pass, where the projection left them",
            sets=(("rope", "fused"),),
            numerics="reordered",
            usual_speedup=1.04,
            device_types=("cuda",),
            vendors=("nvidia",),
            min_compute_capability=(8, 0),
        ),
    ),
    obstacle=_obstacle,
    part="rotation",
    function=_function,
    to_module=_to_module,
    hints={
        "fused": CodeHint(
            step="is called in the model: give it as model=, or call peakward.kernels.rope in its attention",
            handle="model",
        ),
    },
    code={
        "fused": Code(
            imports=("from peakward.kernels import fuse_rope",),
            once=("fuse_rope(model)",),
        ),
    },
    called="RoPE",
    leaves_alone=("optimizer",),
    unseen=not_seen("a capture has the rotation that the module calls"),
    needless=_needless,
    predicted={"cuda": ("fused",)},
    work={"fused": Work(forward=_forward, backward=_backward)},
    kernels={
        "peakward.rope": KernelSpeed(is_measured=True),
        "peakward.rope_": KernelSpeed(is_measured=True),
    },
    own_kernels=("fused",),
)
