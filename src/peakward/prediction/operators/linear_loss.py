"""Peakward's cross-entropy with the output layer in it (`lab/ops/linear_cross_entropy`).

The chunked one has its gradients with the loss, and only scales them in the backward pass; the recomputed
one multiplies once in the forward pass and three times in the backward pass. FLOPs are of whole products;
what lies in a workspace is the operator's own affair (`workspace_bytes`, `prediction.time.linear_loss`).
"""

from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, INT, Tape, of_type, tensor
from peakward.records.op_graph import ITEM_BYTES, Operand

PRODUCTS = {
    "peakward.linear_cross_entropy_chunked": 3,
    "peakward.linear_cross_entropy_recomputed": 1,
    "peakward.linear_cross_entropy_recomputed_backward": 3,
}
"""Of hidden and weight, or of as many multiplications: logits, and the gradients of both."""
LEAST_BYTES = 256 << 20
"""For a chunk of logits, or as many as the weight has."""
COLUMNS, STEP = 16, 128
"""Of a workspace's rows, and of tiles, the multiples that chunks are rounded up to."""
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
    if plan.loss == "chunked":
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
    if plan.loss == "chunked":
        inputs = (x, of_type(weight, FLOAT), scalar, scalar)
        tape.own(f"{_NAME}_chunked_backward", inputs, (x, weight))
    else:
        kept = (x, weight, _targets(plan), _row_sums(plan), scalar, scalar)
        flops = 3 * 2 * x.n_elements * weight.shape[0]
        tape.own(f"{_NAME}_recomputed_backward", kept, (x, weight), flops=flops)
    return x, weight


def kept(plan: Plan) -> tuple[Operand, ...]:
    """What the operator makes for the backward pass, beside its operands in the recomputed one."""
    x, weight = operands(plan)
    if plan.loss == "chunked":
        return x, of_type(weight, FLOAT), tensor(FLOAT)
    return _row_sums(plan), tensor(FLOAT)


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
    most_bytes = max(LEAST_BYTES, weight.n_bytes)
    if of_tokens:
        columns = _round_up(vocab, COLUMNS)
        length = _chunk_length(n_tokens, columns * size, most_bytes)
        return -(-n_tokens // length), length * columns * size
    length = _chunk_length(vocab, n_tokens * size, most_bytes)
    return -(-vocab // length), n_tokens * _round_up(length, COLUMNS) * size


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
