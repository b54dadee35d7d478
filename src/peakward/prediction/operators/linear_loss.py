"""Peakward's cross-entropy with the output layer in it (`kernels/ops/linear_cross_entropy`).

The chunked one has its gradients with the loss, and only scales them in the backward pass; where all
logits fit at once it keeps their gradient, of which the backward pass makes the weight's, and is another
operator (`_whole`). The recomputed one multiplies once in the forward pass and three times in the backward
pass. FLOPs are of whole products; what lies in a workspace is the operator's own affair (`workspace_bytes`,
`prediction.time.linear_loss`).
"""

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
