"""RoPE: queries and keys turned by torch's operators, or in Peakward's own kernel."""

from typing import Any

from peakward.levers.axis import Axis, CodeHint, ComputeCapability, KernelSpeed, not_seen
from peakward.records.case import ConfiguredCase, ModelCase, Written
from peakward.records.lever import Lever


def _obstacle(case: ConfiguredCase, _capability: ComputeCapability | None) -> str | None:
    if not isinstance(case, ModelCase) or case.model.positions == "rope":
        return None
    return f"rope fused needs positions of rope, got {case.model.positions}"


def _function(value: Written) -> Any:
    from peakward.kernels.ops.rotation.api import IMPLEMENTATIONS

    return IMPLEMENTATIONS[value]


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
    kernels={
        "peakward.rope": KernelSpeed(is_measured=True),
        "peakward.rope_": KernelSpeed(is_measured=True),
    },
    own_kernels=("fused",),
)
