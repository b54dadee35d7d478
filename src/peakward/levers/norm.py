"""Norms: as torch's operators, or in Peakward's own kernel."""

from typing import TYPE_CHECKING

from peakward.levers.axis import Axis, Code, CodeHint, KernelSpeed, not_seen
from peakward.records.case import Written
from peakward.records.lever import Lever

if TYPE_CHECKING:
    import torch


def _to_module(module: "torch.nn.Module", value: Written) -> None:
    from peakward.lab.levers import fused_norms

    fused_norms.apply(module, value)


_FORWARD = KernelSpeed(is_measured=True)
_BACKWARD = KernelSpeed(factor=1.08, n_launches=2, is_measured=True)
"""By itself at 0.90 to 0.99 of a copy's rate (`2026-11-23-h100-kernel-speed-rms_norm`, `…-wide`). Another
launch sums up the gradients of the parameters."""


AXIS = Axis(
    name="norm",
    default="torch",
    help="torch, or Peakward's own kernel, the residual's addition with it: fused.",
    levers=(
        Lever(
            name="fused-norm",
            summary="RMSNorm or LayerNorm in Peakward's own kernel, the residual's addition with it",
            sets=(("norm", "fused"),),
            numerics="reordered",
            device_types=("cuda",),
            vendors=("nvidia",),
            min_compute_capability=(8, 0),
        ),
    ),
    to_module=_to_module,
    hints={
        "fused": CodeHint(
            step='outlasts the call: call peakward.lab.levers.fused_norms.apply(model, "fused") before the '
            "loop, in a fresh process"
        ),
    },
    code={
        "fused": Code(
            imports=("from peakward.lab.levers import fused_norms",),
            once=('fused_norms.apply(model, "fused")',),
        ),
    },
    called="norm",
    leaves_alone=("optimizer",),
    unseen=not_seen("a capture has the norms that the module calls"),
    predicted={"cuda": ("fused",)},
    kernels={
        "peakward.add_layer_norm": _FORWARD,
        "peakward.add_layer_norm_backward": _BACKWARD,
        "peakward.add_rms_norm": _FORWARD,
        "peakward.add_rms_norm_backward": _BACKWARD,
    },
    own_kernels=("fused",),
)
