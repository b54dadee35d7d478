"""The tensors of Peakward's cross-entropy with the output layer in it (`kernels/ops/linear_cross_entropy`): a
workspace with a chunk of the logits, never all of them."""

from typing import NamedTuple, TypeVar

from peakward.prediction.memory.timeline import Category, Timeline
from peakward.prediction.operators.linear_loss import chunks, is_whole, kept, operands
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, of_type
from peakward.records.op_graph import ITEM_BYTES

T = TypeVar("T")
_TILE = {FLOAT: 64}
"""Columns of logits that one program of the recomputed loss sums up, on Hopper; 256 in 16 bits."""


class SavedLoss(NamedTuple):
    """Tensors that the loss keeps. The chunked one keeps the gradients, unscaled, or the stream, its gradient
    and that of all logits; the recomputed one its operands and its rows' sums."""

    kept: tuple[int, ...]


def forward(line: Timeline, plan: Plan, normed: int) -> SavedLoss:
    """The normalised stream → the loss."""
    given = _cast(line, plan, normed)
    made = line.ops((each.n_bytes for each in kept(plan)), *given)
    *rows_bytes, chunk_bytes = scratch(plan)
    rows = line.ops(rows_bytes, *given, *made)
    line.op(chunk_bytes, *given, *made, *rows, category=_category(plan))
    line.use(normed)
    return SavedLoss((*saved_operands(plan, *given), *made))


def saved_operands(plan: Plan, x: T, *weight: T) -> tuple[T, ...]:
    """The operands that the backward pass reads."""
    if is_whole(plan):
        return (x,)
    return () if plan.loss == "chunked" else (x, *weight)


def backward(line: Timeline, plan: Plan, saved: SavedLoss) -> int:
    """From the loss to the gradient of the normalised stream; also of the weight."""
    x, weight = operands(plan)
    given = line.saved(*saved.kept)
    *sums_bytes, chunk_bytes = scratch_backward(plan)
    sums = line.ops(sums_bytes, *given)
    chunk = line.op(chunk_bytes, *given, *sums, category="logits")
    made, own = line.ops((x.n_bytes, weight.n_bytes), *given, *sums, chunk)
    if plan.stored == plan.compute:
        line.gradients(own)
        return made
    line.gradient(of_type(weight, plan.stored).n_bytes, own, made)
    return line.op(of_type(x, plan.stored).n_bytes, made)


def scratch(plan: Plan) -> tuple[int, ...]:
    """Bytes that the forward pass has for the meantime; the last are of a chunk of logits, or of what
    each tile of them gave."""
    x, weight = operands(plan)
    row = plan.tokens * ITEM_BYTES[FLOAT]
    if is_whole(plan):
        return 2 * row, 0
    if plan.loss == "chunked":
        return 2 * row, chunks(x, weight, of_tokens=True)[1]
    n_tiles = -(-weight.shape[0] // _TILE.get(plan.compute, 256))
    return 2 * row, 2 * n_tiles * row


def scratch_backward(plan: Plan) -> tuple[int, ...]:
    """Scratch of the backward pass in bytes: the stream's gradient in fp32, where several chunks are
    summed, and a chunk's gradient, which the chunked loss has made already. Where all logits are there at
    once, the scaled stream is freed before its scaled gradient is made."""
    if plan.loss == "chunked":
        return (0,)
    x, weight = operands(plan)
    n_chunks, chunk_bytes = chunks(x, weight, of_tokens=False)
    if plan.compute == FLOAT or n_chunks == 1:
        return (chunk_bytes,)
    return of_type(x, FLOAT).n_bytes, chunk_bytes


def _category(plan: Plan) -> Category:
    return "logits" if plan.loss == "chunked" else "temporaries"


def _cast(line: Timeline, plan: Plan, normed: int) -> tuple[int, ...]:
    """The operands of the product: the stream, and the weight where it is cast."""
    if plan.stored == plan.compute:
        return (normed,)
    x, weight = operands(plan)
    return line.op(x.n_bytes, normed), line.op(weight.n_bytes, category="weight_casts")
