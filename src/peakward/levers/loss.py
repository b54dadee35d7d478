"""The loss: the cross-entropy behind the output layer, or with the output layer in it."""

from typing import TYPE_CHECKING, Any, get_args

from peakward.levers.axis import (
    TRAINING,
    Axis,
    Code,
    CodeHint,
    ComputeCapability,
    KernelSpeed,
    Undo,
    Work,
    not_seen,
)
from peakward.records.case import ConfiguredCase, Loss, ModelCase
from peakward.records.lever import Lever
from peakward.records.op_graph import Operand, OpGraph

if TYPE_CHECKING:
    import torch

    from peakward.prediction.operators.plan import Plan
    from peakward.prediction.operators.writer import Value as Written
    from peakward.prediction.operators.writer import Writer

WHOLE_BYTES = 16
"""The recomputed loss takes rows of whole pieces of so many bytes."""
TYPE_BYTES = {"fp32": 4, "tf32": 4}
"""Bytes of what it multiplies, by precision; 2 in the others."""
_IN_STEP = "is called by the step: call peakward.kernels.{} in the place {}, or let the model do so"
_WITH_HEAD = _IN_STEP.format("linear_cross_entropy", "of its output layer and its loss")


def _lever(
    name: str,
    summary: str,
    value: Loss,
    *,
    saves_memory: bool = False,
    usual_speedup: float | None = None,
) -> Lever:
    return Lever(
        name=name,
        summary=summary,
        sets=(("loss", value),),
        numerics="reordered",
        saves="memory" if saves_memory else "time",
        usual_speedup=usual_speedup,
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


def _to_module(module: "torch.nn.Module", value: Loss) -> Undo:
    from peakward.lab.rewriting.rewriting import nothing, replace_part

    return nothing if value == "torch" else replace_part(module, "loss", value)


_SCALAR = Operand(shape=(), dtype="float32")


def _forward(on: "Writer", plan: "Plan", logits: "Written") -> tuple["Written", ...]:
    """Keeps the logits, the sums of each row, and how many targets count."""
    row, sums = (Operand(shape=(plan.tokens, *n), dtype="float32") for n in ((), (2,)))
    targets = on.parameter(Operand(shape=(plan.tokens,), dtype="int64"))
    on.for_time(
        "peakward.cross_entropy_over_logits", (logits, targets), (_SCALAR, row, sums, _SCALAR)
    )
    # Of each row the loss and whether it counts; the mean; its sums; how many count.
    made = on.for_memory((logits,), (row, row, _SCALAR, sums, _SCALAR))
    return logits, *made[-2:]


def _backward(on: "Writer", plan: "Plan", saved: tuple["Written", ...]) -> "Written":
    """The gradient is written over the logits."""
    logits, sums, n_counted = saved
    targets = on.parameter(Operand(shape=(plan.tokens,), dtype="int64"))
    scalar = on.parameter(_SCALAR)
    given = (logits, targets, sums, scalar, n_counted)
    on.for_time("peakward.cross_entropy_backward_over_logits", given, (logits.operand,))
    on.for_memory((logits, *on.saved(sums, n_counted)), ())
    return logits


def _needless(graph: OpGraph, _case: ConfiguredCase) -> str | None:
    if any(each.name.startswith("aten.nll_loss") for each in graph.operators):
        return None
    return "needs torch's cross_entropy, got a module whose operators have none"


AXIS = Axis(
    name="loss",
    default="torch",
    help="torch, or Peakward's own kernels: fused; with the output layer in it chunked or recomputed.",
    levers=(
        _lever(
            "fused-loss",
            "cross-entropy in Peakward's own kernels, the gradient written over the logits",
            "fused",
            usual_speedup=1.02,
        ),
        _lever(
            "chunked-loss",
            "output layer and cross-entropy by chunks of tokens: never all logits at once",
            "chunked",
            saves_memory=True,
            # In a graph of a compiled step (H200, bf16) nanoGPT's model takes 22.4 ms with it for 22.9,
            # minGPT's 23.1 for 23.8, and transformers' gpt2, whose head is 50,257 wide, 31.0 for 38.6. With
            # fused-loss they take 22.9 and 33.1, nanoGPT's and gpt2.
            usual_speedup=1.03,
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
    to_module=_to_module,
    hints={
        "fused": CodeHint(step=_IN_STEP.format("cross_entropy", "of its loss"), handle="model"),
        "chunked": CodeHint(step=_WITH_HEAD, handle="model"),
        "recomputed": CodeHint(step=_WITH_HEAD, handle="model"),
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
    needless=_needless,
    predicted={"cuda": get_args(Loss)},
    work={"fused": Work(forward=_forward, backward=_backward)},
    kernels={
        # Its mean is a launch. Of 8,192 tokens over 10,000 words it takes 1.30 times this, of 2,048 over
        # 50,257 words 1.26.
        "peakward.cross_entropy_over_logits": KernelSpeed(n_launches=2),
        "peakward.cross_entropy_backward_over_logits": KernelSpeed(is_measured=True),
        "peakward.linear_cross_entropy_chunked_backward": KernelSpeed(n_launches=2),
    },
    own_kernels=("fused", "chunked", "recomputed"),
)
