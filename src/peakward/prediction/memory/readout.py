"""Final norm, head and mean cross-entropy: of the logits up to three fp32 copies at once."""

from typing import NamedTuple

from peakward.prediction.memory import linear, linear_loss, norms
from peakward.prediction.memory.linear import SavedLinear
from peakward.prediction.memory.linear_loss import SavedLoss
from peakward.prediction.memory.norms import SavedNorm
from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators import readout
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT
from peakward.records.op_graph import ITEM_BYTES


class SavedReadout(NamedTuple):
    """What the loss needs of the forward pass."""

    norm: SavedNorm
    head: SavedLinear | SavedLoss
    likelihoods: int
    """Of Peakward's loss the logits themselves; of one with the output layer in it there are none."""
    sums: tuple[int, ...] = ()
    """What it keeps of each row."""


def forward(line: Timeline, plan: Plan, x: int) -> tuple[SavedNorm, SavedLinear, int]:
    """The residual stream → logits in the compute type."""
    plan = plan.of_readout
    norm, normed = norms.forward(line, plan, x)
    layer = readout.head(plan)
    head, logits = linear.forward(line, layer, normed, plan.tokens, plan.stored, category="logits")
    return norm, head, logits


def loss(line: Timeline, plan: Plan, x: int) -> SavedReadout:
    """The residual stream → log-likelihoods, with the fp32 logits there until the loss is made."""
    if plan.loss_has_head:
        norm, normed = norms.forward(line, plan, x)
        return SavedReadout(norm, linear_loss.forward(line, plan, normed), normed)
    norm, head, logits = forward(line, plan, x)
    if plan.loss == "fused":
        row = plan.tokens * ITEM_BYTES[FLOAT]
        *_, sums, count = line.ops(
            (row, row, ITEM_BYTES[FLOAT], 2 * row, ITEM_BYTES[FLOAT]), logits
        )
        return SavedReadout(norm, head, logits, (sums, count))
    if plan.compute != FLOAT:
        logits = line.op(_wide(plan), logits, category="logits")
    return SavedReadout(norm, head, line.op(_wide(plan), logits, category="logits"))


def loss_backward(line: Timeline, plan: Plan, saved: SavedReadout) -> int:
    """The gradient of the logits in the compute type: through the loss's choice of a likelihood in
    each row, then through the log-softmax, each as large as the fp32 logits. Of a loss with the output
    layer in it that of the normalised stream."""
    if isinstance(saved.head, SavedLoss):
        return linear_loss.backward(line, plan, saved.head)
    if plan.loss == "fused":
        line.ops((), saved.likelihoods, *line.saved(*saved.sums))
        return saved.likelihoods
    wide = _wide(plan)
    gradient = line.op(wide, saved.likelihoods, category="logits")
    gradient = line.op(wide, gradient, saved.likelihoods, category="logits")
    if plan.compute == FLOAT:
        return gradient
    narrow = wide * ITEM_BYTES[plan.compute] // ITEM_BYTES[FLOAT]
    return line.op(narrow, gradient, category="logits")


def backward(line: Timeline, plan: Plan, saved: SavedReadout, gradient: int) -> int:
    """From what `loss_backward` gave to the gradient of the residual stream."""
    if isinstance(saved.head, SavedLinear):
        gradient = linear.backward(line, saved.head, gradient, plan.tokens, plan.stored)
    return norms.backward(line, plan, saved.norm, gradient)


def _wide(plan: Plan) -> int:
    return plan.tokens * plan.shape.vocab_size * ITEM_BYTES[FLOAT]
