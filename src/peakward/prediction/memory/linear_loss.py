"""What Peakward's cross-entropy with the output layer in it holds (`lab/ops/linear_cross_entropy`): never
all logits, but a workspace with a chunk of them."""

from typing import NamedTuple

from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.linear_loss import chunks, operands
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, of_type
from peakward.records.op_graph import ITEM_BYTES

_TILE = {FLOAT: 64}
"""Columns of logits that one program of the recomputed loss sums up, on Hopper; 256 in 16 bits."""


class SavedLoss(NamedTuple):
    """Of the chunked one the gradients, unscaled; of the recomputed one its operands and its rows' sums."""

    kept: tuple[int, ...]


def forward(line: Timeline, plan: Plan, normed: int) -> SavedLoss:
    """The normalised stream → the loss."""
    given = _cast(line, plan, normed)
    x, weight = operands(plan)
    row, one = plan.tokens * ITEM_BYTES[FLOAT], ITEM_BYTES[FLOAT]
    if plan.loss == "recomputed":
        n_tiles = -(-weight.shape[0] // _TILE.get(plan.compute, 256))
        *_, sums, count = line.ops((2 * n_tiles * row, 2 * row, one, 2 * row, one), *given)
        line.use(normed)
        return SavedLoss((*given, sums, count))
    kept = line.ops((x.n_bytes, of_type(weight, FLOAT).n_bytes, one), *given)
    rows = line.ops((2 * row, one), *given, *kept)
    _, workspace_bytes = chunks(x, weight, of_tokens=True)
    line.op(workspace_bytes, *given, *kept, *rows, normed, category="logits")
    return SavedLoss(kept)


def backward(line: Timeline, plan: Plan, saved: SavedLoss) -> int:
    """From the loss to the gradient of the normalised stream; also of the weight."""
    x, weight = operands(plan)
    kept = line.saved(*saved.kept)
    if plan.loss == "recomputed":
        total = line.op(of_type(x, FLOAT).n_bytes, *kept)
        _, workspace_bytes = chunks(x, weight, of_tokens=False)
        own = line.op(weight.n_bytes, total, *kept)
        chunk = line.op(workspace_bytes, total, own, *kept, category="logits")
        made = total if plan.compute == FLOAT else line.op(x.n_bytes, total, own, chunk, *kept)
    else:
        made = line.op(x.n_bytes, *kept)
        own = line.op(weight.n_bytes, made, *kept)
    if plan.stored == plan.compute:
        line.gradients(own)
        return made
    line.gradient(of_type(weight, plan.stored).n_bytes, own, made)
    return line.op(of_type(x, plan.stored).n_bytes, made)


def _cast(line: Timeline, plan: Plan, normed: int) -> tuple[int, ...]:
    """What is multiplied: the stream, and where it is cast the weight."""
    if plan.stored == plan.compute:
        return (normed,)
    x, weight = operands(plan)
    return line.op(x.n_bytes, normed), line.op(weight.n_bytes, category="weight_casts")
