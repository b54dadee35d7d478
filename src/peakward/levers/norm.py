"""Norms: as torch's operators, or in Peakward's own kernel."""

from typing import TYPE_CHECKING

from peakward.levers.axis import Axis, Code, CodeHint, KernelSpeed, Undo, Work, not_seen
from peakward.levers.compile import fuses_by_itself
from peakward.records.case import ConfiguredCase, Written
from peakward.records.errors import PeakwardError
from peakward.records.lever import Lever
from peakward.records.op_graph import Operand, OpGraph

if TYPE_CHECKING:
    import torch

    from peakward.prediction.operators.plan import Plan
    from peakward.prediction.operators.writer import Value, Writer


def _to_module(module: "torch.nn.Module", value: Written) -> Undo:
    from peakward.kernels.ops.norm_modules.api import replace_norms

    if value == "torch":
        return lambda: None
    replaced = replace_norms(module)
    if not replaced.n:
        raise PeakwardError(
            f"expected a module with norms, of any class that computes RMSNorm or LayerNorm of the last "
            f"dimension, got {type(module).__name__} without: call peakward.kernels.rms_norm in its own norm"
        )
    return replaced.undo


def _needless(_graph: OpGraph, case: ConfiguredCase) -> str | None:
    return fuses_by_itself(case, "norms")


def _forward(
    on: "Writer", plan: "Plan", x: "Value", *added: "Value"
) -> tuple["Value", tuple["Value", ...], "Value"]:
    """One operator, which makes the sum too."""
    row = Operand(shape=(plan.tokens,), dtype="float32")
    total = plan.hidden if added else Operand(shape=(0,), dtype=plan.stored)
    inputs = (x, *added, *_parameters(on, plan))
    y, made, *figures = on.call(
        _NAMES[plan.shape.norm], inputs, (plan.hidden, total, *[row] * _n_vectors(plan))
    )
    return made if added else x, tuple(figures), y


def _backward(
    on: "Writer", plan: "Plan", saved: tuple["Value", ...], gradient: "Value", *past: "Value"
) -> "Value":
    (x, *figures), parameters = saved, _parameters(on, plan)
    return on.call(
        f"{_NAMES[plan.shape.norm]}_backward",
        (gradient, *past, x, *parameters, *figures),
        (plan.hidden,),
        parameters=[each.operand for each in parameters],
    )[0]


def _parameters(on: "Writer", plan: "Plan") -> list["Value"]:
    weight = Operand(shape=(plan.shape.d_model,), dtype=plan.stored)
    return [on.parameter(weight)] * _n_vectors(plan)


def _n_vectors(plan: "Plan") -> int:
    """Parameters, and figures of each position: LayerNorm has a bias and a mean besides."""
    return 2 if plan.shape.norm == "layernorm" else 1


_NAMES = {"layernorm": "peakward.add_layer_norm", "rmsnorm": "peakward.add_rms_norm"}
_FORWARD = KernelSpeed(is_measured=True)
_BACKWARD = KernelSpeed(factor=1.08, n_launches=2, is_measured=True)
"""By itself at 0.90 to 0.99 of a copy's rate (`2026-11-23-h100-kernel-speed-rms_norm`, `…-wide`). Another
launch sums up the gradients of the parameters."""


AXIS = Axis(
    name="norm",
    part="norm",
    default="torch",
    help="torch, or Peakward's own kernel, the residual's addition with it: fused.",
    levers=(
        Lever(
            name="fused-norm",
            summary="RMSNorm or LayerNorm in Peakward's own kernel, the residual's addition with it",
            sets=(("norm", "fused"),),
            numerics="reordered",
            usual_speedup=1.01,
            device_types=("cuda",),
            vendors=("nvidia",),
            min_compute_capability=(8, 0),
        ),
    ),
    to_module=_to_module,
    hints={
        "fused": CodeHint(
            step="outlasts the call: give the model as model=, or call peakward.kernels.fuse_norms(model) "
            "before the loop, in a fresh process",
            handle="model",
        ),
    },
    code={
        "fused": Code(
            imports=("from peakward.kernels import fuse_norms",),
            once=("fuse_norms(model)",),
        ),
    },
    called="norm",
    leaves_alone=("optimizer",),
    unseen=not_seen("a capture has the norms that the module calls"),
    needless=_needless,
    predicted={"cuda": ("fused",)},
    work={"fused": Work(forward=_forward, backward=_backward)},
    kernels={
        "peakward.add_layer_norm": _FORWARD,
        "peakward.add_layer_norm_backward": _BACKWARD,
        "peakward.add_rms_norm": _FORWARD,
        "peakward.add_rms_norm_backward": _BACKWARD,
    },
    own_kernels=("fused",),
)
