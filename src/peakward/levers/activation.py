"""Activations: as a module writes them out, or by torch's one call."""

from typing import TYPE_CHECKING

from peakward.levers.axis import Axis, Code, CodeHint, ComputeCapability, Undo, not_seen
from peakward.levers.compile import fuses_by_itself
from peakward.records.case import ConfiguredCase, ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.lever import Lever
from peakward.records.op_graph import OpGraph

if TYPE_CHECKING:
    import torch

WRITTEN_OUT = ("aten.tanh", "aten.erf", "aten.sigmoid")
"""One of these is at the heart of an activation that is written out."""


def _obstacle(case: ConfiguredCase, _capability: ComputeCapability | None) -> str | None:
    if not isinstance(case, ModelCase):
        return None
    return "activation torch is for modules that write theirs out: the decoder calls torch's"


def _to_module(module: "torch.nn.Module", _value: str) -> Undo:
    from peakward.kernels.ops.activation_modules.api import replace_activations

    replaced = replace_activations(module)
    if not replaced.n:
        raise PeakwardError(
            "expected a module with modules that write out GELU or SiLU, got "
            f"{type(module).__name__} without: call torch's where it computes its activation"
        )
    return replaced.undo


def _needless(graph: OpGraph, case: ConfiguredCase) -> str | None:
    forward = {each.name for each in graph.operators if each.phase == "forward"}
    if forward.isdisjoint(WRITTEN_OUT):
        return "needs an activation written out, got a module whose operators have none"
    return fuses_by_itself(case, "activations")


AXIS = Axis(
    name="activation",
    default="as-written",
    help="Of a module: as-written, or torch, whose one call takes the place of GELU or SiLU written out.",
    levers=(
        Lever(
            name="torch-activation",
            summary="GELU or SiLU that a module writes out, by torch's one call",
            sets=(("activation", "torch"),),
            numerics="reordered",
        ),
    ),
    obstacle=_obstacle,
    to_module=_to_module,
    hints={
        "torch": CodeHint(
            step="is called in the model: give it as model=, or call torch.nn.functional.gelu or silu there",
            handle="model",
        ),
    },
    code={
        "torch": Code(
            imports=("from peakward.kernels import fuse_activations",),
            once=("fuse_activations(model)",),
        ),
    },
    called="activations",
    leaves_alone=("optimizer",),
    unseen=not_seen("a capture has the activation that the module writes out"),
    needless=_needless,
)
