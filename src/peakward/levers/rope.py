"""RoPE: queries and keys turned by torch's operators, or in Peakward's own kernel."""

from typing import TYPE_CHECKING, Any

from peakward.levers.axis import Axis, CodeHint, ComputeCapability, KernelSpeed, Work, not_seen
from peakward.records.case import ConfiguredCase, ModelCase, Written
from peakward.records.lever import Lever
from peakward.records.op_graph import Operand

if TYPE_CHECKING:
    from peakward.prediction.operators.plan import Plan
    from peakward.prediction.operators.writer import Value, Writer


def _obstacle(case: ConfiguredCase, _capability: ComputeCapability | None) -> str | None:
    if not isinstance(case, ModelCase) or case.model.positions == "rope":
        return None
    return f"rope fused needs positions of rope, got {case.model.positions}"


def _function(value: Written) -> Any:
    from peakward.kernels.ops.rotation.api import IMPLEMENTATIONS

    return IMPLEMENTATIONS[value]


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
    hints={
        "fused": CodeHint(
            module="is called by the module: call peakward.kernels.rope in its attention"
        ),
    },
    called="RoPE",
    leaves_alone=("optimizer",),
    unseen=not_seen("a capture has the rotation that the module calls"),
    predicted={"cuda": ("fused",)},
    work={"fused": Work(forward=_forward, backward=_backward)},
    kernels={
        "peakward.rope": KernelSpeed(is_measured=True),
        "peakward.rope_": KernelSpeed(is_measured=True),
    },
    own_kernels=("fused",),
)
