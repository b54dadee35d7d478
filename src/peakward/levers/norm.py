"""Norms: as torch's operators, or in Peakward's own kernel."""

from typing import TYPE_CHECKING

from peakward.levers.axis import Axis, Code, CodeHint, not_seen
from peakward.records.case import Written
from peakward.records.lever import Lever

if TYPE_CHECKING:
    import torch


def _to_module(module: "torch.nn.Module", value: Written) -> None:
    from peakward.lab.levers import fused_norms

    fused_norms.apply(module, value)


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
    own_kernels=("fused",),
)
