"""The loss: the cross-entropy behind the output layer, or with the output layer in it."""

from typing import Any, get_args

from peakward.levers.axis import (
    TRAINING,
    Axis,
    Code,
    CodeHint,
    ComputeCapability,
    KernelSpeed,
    not_seen,
)
from peakward.records.case import ConfiguredCase, Loss, ModelCase
from peakward.records.lever import Lever

WHOLE_BYTES = 16
"""The recomputed loss takes rows of whole pieces of so many bytes."""
TYPE_BYTES = {"fp32": 4, "tf32": 4}
"""Bytes of what it multiplies, by precision; 2 in the others."""
_WITH_HEAD = (
    "has the output layer in it: call peakward.kernels.linear_cross_entropy in the module, in their "
    "place"
)


def _lever(name: str, summary: str, value: Loss, *, saves_memory: bool = False) -> Lever:
    return Lever(
        name=name,
        summary=summary,
        sets=(("loss", value),),
        numerics="reordered",
        saves="memory" if saves_memory else "time",
        passes=TRAINING,
        device_types=("cuda",),
        vendors=("nvidia",),
        min_compute_capability=(8, 0),
    )


def _obstacle(case: ConfiguredCase, _capability: ComputeCapability | None) -> str | None:
    configuration = case.configuration
    if not isinstance(case, ModelCase) or configuration.loss != "recomputed":
        return None
    d_model, precision = case.model.d_model, configuration.precision
    if d_model * TYPE_BYTES.get(precision, 2) % WHOLE_BYTES:
        return (
            f"loss recomputed needs a d_model of whole {WHOLE_BYTES} bytes, got {d_model} in "
            f"{precision}; chunked takes any"
        )
    return None


def _function(value: Loss) -> Any:
    from peakward.kernels.ops.loss.api import implementation

    return implementation(value)


AXIS = Axis(
    name="loss",
    default="torch",
    help="torch, or Peakward's own kernels: fused; with the output layer in it chunked or recomputed.",
    levers=(
        _lever(
            "fused-loss",
            "cross-entropy in Peakward's own kernels, the gradient written over the logits",
            "fused",
        ),
        _lever(
            "chunked-loss",
            "output layer and cross-entropy by chunks of tokens: never all logits at once",
            "chunked",
            saves_memory=True,
        ),
        _lever(
            "recomputed-loss",
            "cross-entropy without logits in the forward pass, computed again in backward",
            "recomputed",
            saves_memory=True,
        ),
    ),
    obstacle=_obstacle,
    part="loss",
    function=_function,
    hints={
        "fused": CodeHint(
            factory="takes the logits before the loss: call peakward.kernels.cross_entropy in the "
            "module's own loss",
            step="is called by the step: call peakward.kernels.cross_entropy in the place of its loss",
        ),
        "chunked": CodeHint(module=_WITH_HEAD),
        "recomputed": CodeHint(module=_WITH_HEAD),
    },
    code={
        "fused": Code(
            imports=("from peakward.kernels import cross_entropy",),
            each_step=("loss = cross_entropy(logits, targets)",),
        ),
    },
    called="loss",
    leaves_alone=("optimizer",),
    unseen=not_seen("a capture takes torch's cross-entropy"),
    predicted={"cuda": get_args(Loss)},
    kernels={
        # Its mean is a launch. Of 8,192 tokens over 10,000 words it takes 1.30 times this, of 2,048 over
        # 50,257 words 1.26.
        "peakward.cross_entropy_over_logits": KernelSpeed(n_launches=2),
        "peakward.cross_entropy_backward_over_logits": KernelSpeed(is_measured=True),
        "peakward.linear_cross_entropy_chunked_backward": KernelSpeed(n_launches=2),
    },
    own_kernels=("fused", "chunked", "recomputed"),
)
