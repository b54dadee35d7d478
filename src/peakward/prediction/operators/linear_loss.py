"""Peakward's cross-entropy with the output layer in it (`kernels/ops/linear_cross_entropy`).

The chunked one has its gradients with the loss, and only scales them in the backward pass; where all
logits fit at once it keeps their gradient, of which the backward pass makes the weight's, and is another
operator (`_whole`). The recomputed one multiplies once in the forward pass and three times in the backward
pass. FLOPs are of whole products; what lies in a workspace is the operator's own affair (`workspace_bytes`,
`prediction.time.special_operators`).
"""

from typing import NamedTuple, TypeVar

from peakward.prediction.memory.timeline import Category, Timeline
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, HALF, INT, Tape, of_type, tensor
from peakward.records.op_graph import ITEM_BYTES, Operand

PRODUCTS = {
    "peakward.linear_cross_entropy_chunked": 3,
    "peakward.linear_cross_entropy_whole": 2,
    "peakward.linear_cross_entropy_whole_backward": 1,
    "peakward.linear_cross_entropy_recomputed": 1,
    "peakward.linear_cross_entropy_recomputed_backward": 3,
}
"""How many products of hidden and weight, or of as many multiplications: logits, and the gradients of
both."""
LEAST_BYTES, LEAST_TOKENS = 256 << 20, 4096
"""For a chunk of logits, or as many bytes as the weight has; of tokens the logits in 16 bits of so many."""
COLUMNS, STEP = 16, 128
"""Multiples that chunks are rounded up to: of a workspace's rows, and of tiles."""
_NAME = "linear_cross_entropy"


def forward(tape: Tape, plan: Plan) -> None:
    """The normed residual stream → the mean cross-entropy."""
    for each in operands(plan):
        tape.cast(of_type(each, plan.stored), plan.compute)
    call(tape, plan)


def call(tape: Tape, plan: Plan) -> None:
    """The operator itself, of operands in the compute type."""
    x, weight = operands(plan)
    scalar, targets = tensor(FLOAT), _targets(plan)
    flops = 2 * x.n_elements * weight.shape[0]
    if is_whole(plan):
        outputs = (scalar, scalar, x, slope(plan))
        tape.own(f"{_NAME}_whole", (x, weight, targets), outputs, flops=2 * flops)
    elif plan.loss == "chunked":
        outputs = (scalar, scalar, x, of_type(weight, FLOAT))
        tape.own(f"{_NAME}_chunked", (x, weight, targets), outputs, flops=3 * flops)
    else:
        sums = (scalar, _row_sums(plan), scalar)
        tape.own(f"{_NAME}_recomputed", (x, weight, targets), sums, flops=flops)


def backward(tape: Tape, plan: Plan) -> None:
    """From the loss to the gradient of the normed residual stream; also of the weight."""
    for each in call_backward(tape, plan):
        tape.cast(each, plan.stored)


def call_backward(tape: Tape, plan: Plan) -> tuple[Operand, Operand]:
    """The operator's own gradient: of both operands, in the compute type."""
    x, weight = operands(plan)
    scalar = tensor(FLOAT)
    if is_whole(plan):
        flops = 2 * x.n_elements * slope(plan).shape[1]
        of_all = (x, x, slope(plan), scalar, scalar)
        tape.own(f"{_NAME}_whole_backward", of_all, (x, weight), flops=flops)
    elif plan.loss == "chunked":
        inputs = (x, of_type(weight, FLOAT), scalar, scalar)
        tape.own(f"{_NAME}_chunked_backward", inputs, (x, weight))
    else:
        kept = (x, weight, _targets(plan), _row_sums(plan), scalar, scalar)
        flops = 3 * 2 * x.n_elements * weight.shape[0]
        tape.own(f"{_NAME}_recomputed_backward", kept, (x, weight), flops=flops)
    return x, weight


def kept(plan: Plan) -> tuple[Operand, ...]:
    """Tensors that the operator makes for the backward pass. The recomputed loss keeps its operands too,
    and a loss with all logits at once the stream."""
    x, weight = operands(plan)
    if is_whole(plan):
        return x, slope(plan), tensor(FLOAT)
    if plan.loss == "chunked":
        return x, of_type(weight, FLOAT), tensor(FLOAT)
    return _row_sums(plan), tensor(FLOAT)


def is_whole(plan: Plan) -> bool:
    """Whether the chunked one has all logits at once: as much as a chunk and the weight's gradient in
    fp32, less that gradient, may take. Not of fp16, whose range the scaled stream may leave."""
    if plan.loss != "chunked" or plan.compute == HALF:
        return False
    _, weight = operands(plan)
    sums_bytes = of_type(weight, FLOAT).n_bytes - weight.n_bytes
    return slope(plan).n_bytes <= _most_bytes(weight, of_tokens=True) + sums_bytes


def slope(plan: Plan) -> Operand:
    """The gradient of all logits."""
    return tensor(plan.compute, plan.tokens, _round_up(plan.shape.vocab_size, COLUMNS))


def operands(plan: Plan) -> tuple[Operand, Operand]:
    """(tokens, d_model) and (vocab_size, d_model) in the compute type."""
    shape = plan.shape
    return (
        tensor(plan.compute, plan.tokens, shape.d_model),
        tensor(plan.compute, shape.vocab_size, shape.d_model),
    )


def chunks(hidden: Operand, weight: Operand, *, of_tokens: bool) -> tuple[int, int]:
    """How many there are, and the bytes of the workspace that one lies in (`workspace.py` of the
    operator): a chunk of tokens by the whole vocabulary, or all tokens by a part of it."""
    (n_tokens, _), (vocab, _) = hidden.shape, weight.shape
    size = ITEM_BYTES[hidden.dtype]
    most_bytes = _most_bytes(weight, of_tokens=of_tokens)
    if of_tokens:
        columns = _round_up(vocab, COLUMNS)
        length = _chunk_length(n_tokens, columns * size, most_bytes)
        return -(-n_tokens // length), length * columns * size
    length = _chunk_length(vocab, n_tokens * size, most_bytes)
    return -(-vocab // length), n_tokens * _round_up(length, COLUMNS) * size


def _most_bytes(weight: Operand, *, of_tokens: bool) -> int:
    of_least_tokens = 2 * LEAST_TOKENS * _round_up(weight.shape[0], COLUMNS)
    return max(LEAST_BYTES, of_least_tokens * of_tokens, weight.n_bytes)


def _chunk_length(length: int, row_bytes: int, n_bytes: int) -> int:
    if length * row_bytes <= n_bytes:
        return length
    most = max(STEP, n_bytes // row_bytes // STEP * STEP)
    n_chunks = max(1, -(-length // most))
    return min(length, _round_up(-(-length // n_chunks), STEP))


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def _targets(plan: Plan) -> Operand:
    return tensor(INT, plan.tokens)


def _row_sums(plan: Plan) -> Operand:
    return tensor(FLOAT, plan.tokens, 2)


# The tensors of Peakward's cross-entropy with the output layer in it (`kernels/ops/linear_cross_entropy`): a
# workspace with a chunk of the logits, never all of them.

T = TypeVar("T")
_TILE = {FLOAT: 64}
"""Columns of logits that one program of the recomputed loss sums up, on Hopper; 256 in 16 bits."""


class SavedLinearLoss(NamedTuple):
    """Tensors that the loss keeps. The chunked one keeps the gradients, unscaled, or the stream, its gradient
    and that of all logits; the recomputed one its operands and its rows' sums."""

    kept: tuple[int, ...]


def forward_in_memory(line: Timeline, plan: Plan, normed: int) -> SavedLinearLoss:
    """The normalised stream → the loss."""
    given = _cast(line, plan, normed)
    made = line.ops((each.n_bytes for each in kept(plan)), *given)
    *rows_bytes, chunk_bytes = scratch(plan)
    rows = line.ops(rows_bytes, *given, *made)
    line.op(chunk_bytes, *given, *made, *rows, category=_category(plan))
    line.use(normed)
    return SavedLinearLoss((*saved_operands(plan, *given), *made))


def saved_operands(plan: Plan, x: T, *weight: T) -> tuple[T, ...]:
    """The operands that the backward pass reads."""
    if is_whole(plan):
        return (x,)
    return () if plan.loss == "chunked" else (x, *weight)


def backward_in_memory(line: Timeline, plan: Plan, saved: SavedLinearLoss) -> int:
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
