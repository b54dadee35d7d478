"""Checkpointing: which activations are recomputed in the backward pass, to hold less memory."""

from typing import get_args

from peakward.levers.axis import TRAINING, Axis, CodeHint, ComputeCapability, Needs, seen
from peakward.records.case import Checkpointing, ConfiguredCase
from peakward.records.lever import Lever

_BACKWARD = Needs(passes=TRAINING)


def _obstacle(case: ConfiguredCase, _capability: ComputeCapability | None) -> str | None:
    if not case.workload.caches:
        return None
    return (
        f"checkpointing {case.configuration.checkpointing} needs a pass that trains, "
        f"got {case.workload.pass_}"
    )


AXIS = Axis(
    name="checkpointing",
    default="none",
    help="none, sqrt, every-block or selective.",
    metavar="POLICY,…",
    levers=(
        Lever(
            name="checkpointing",
            summary="every block's activations recomputed in backward",
            sets=(("checkpointing", "every-block"),),
            numerics="exact",
            saves="memory",
            passes=TRAINING,
        ),
    ),
    others={"sqrt": _BACKWARD, "selective": _BACKWARD},
    costs_time=True,
    obstacle=_obstacle,
    hints={
        "every-block": CodeHint(
            step="is called by the model: give it as model=, or call torch.utils.checkpoint around each "
            "block in its forward pass",
            handle="model",
        ),
        "sqrt": CodeHint(
            module="takes the loop over the blocks: use every-block, or checkpoint runs in it"
        ),
    },
    leaves_alone=("optimizer",),
    unseen=seen,
    predicted={"cpu": ("sqrt", "every-block"), "cuda": get_args(Checkpointing)},
)
