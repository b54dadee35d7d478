"""The ways to tell positions, and the masks that follow from them."""

from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import BOOL, FLOAT, INT, Tape, tensor
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.op_graph import Operand

# Token embedding and what tells positions: learned rows, sinusoids, ALiBi's bias, RoPE's angles.


def forward(tape: Tape, plan: Plan) -> None:
    """Ids to the residual stream, and what every block shares."""
    shape, hidden = plan.shape, plan.hidden
    table = tensor(plan.stored, shape.vocab_size, shape.d_model)
    ids = tensor(INT, plan.batch, plan.seq)
    with tape.module("embedding"):
        tape.call("embedding", (table, ids), (hidden,), bytes_read=ids.n_bytes + hidden.n_bytes)
    rows = tensor(plan.stored, plan.seq, shape.d_model)
    if shape.positions == "learned":
        tape.pointwise("add", hidden, rows)
    elif shape.positions == "sinusoidal":
        # The factor of the tokens is part of the sum.
        tape.pointwise("add", _sinusoids(tape, plan), hidden)
    elif shape.positions == "rope":
        _rotation(tape, plan)
    else:
        _alibi(tape, plan)


def backward(tape: Tape, plan: Plan) -> None:
    """Gradient of the residual stream → of the tables that were looked up in."""
    shape, hidden = plan.shape, plan.hidden
    table = tensor(plan.stored, shape.vocab_size, shape.d_model)
    if shape.positions == "learned":
        tape.reduced("sum", hidden, 1, plan.seq, shape.d_model)
        rows = tensor(plan.stored, plan.seq, shape.d_model)
        whole = tensor(plan.stored, shape.max_seq_len, shape.d_model)
        tape.call("slice_backward", (rows,), (whole,))
    elif shape.positions == "sinusoidal":
        tape.pointwise("mul", hidden)
    with tape.module("embedding"):
        ids = tensor(INT, plan.batch, plan.seq)
        tape.call("embedding_dense_backward", (hidden, ids), (table,))
        if shape.tied_head:
            tape.pointwise("add", table, table)


def _angles(tape: Tape, plan: Plan, n: int) -> Operand:
    """(seq, n) of fp32: position times frequency."""
    exponent = tape.pointwise("div", tape.made("arange", FLOAT, n))
    tape.made("arange", FLOAT, plan.seq)
    frequency = tape.pointwise("pow", tape.pointwise("neg", exponent))
    return tape.pointwise("mul", tensor(FLOAT, plan.seq, 1), frequency)


def _rotation(tape: Tape, plan: Plan) -> None:
    angle = _angles(tape, plan, plan.shape.head_dim // 2)
    tape.cast(tape.pointwise("cos", angle), plan.stored)
    tape.cast(tape.pointwise("sin", angle), plan.stored)


def _sinusoids(tape: Tape, plan: Plan) -> Operand:
    n = (plan.shape.d_model + 1) // 2
    angle = _angles(tape, plan, n)
    tape.pointwise("sin", angle)
    tape.pointwise("cos", angle)
    both = tensor(FLOAT, plan.seq, n, 2)
    tape.call("stack", (Operand(shape=angle.shape, dtype=FLOAT, count=2),), (both,))
    return tape.cast(tensor(FLOAT, plan.seq, plan.shape.d_model), plan.stored)


def _alibi(tape: Tape, plan: Plan) -> None:
    distance = tape.pointwise("clamp", distances(tape, plan.seq, plan.keys))
    _slopes(tape, plan.shape.n_heads)
    slopes = tape.pointwise("neg", tensor(FLOAT, plan.shape.n_heads, 1, 1))
    tape.pointwise("mul", slopes, distance)


def _slopes(tape: Tape, n_heads: int) -> None:
    """(heads,): of the power of two below, then of those that it lacks."""
    power = 1 << (n_heads.bit_length() - 1)
    sizes = (power, n_heads - power)
    parts = tuple(tape.pointwise("div", tape.made("arange", FLOAT, each)) for each in sizes)
    exponents = tensor(FLOAT, n_heads)
    tape.call("cat", parts, (exponents,))
    tape.pointwise("exp2", tape.pointwise("mul", exponents))


def distances(tape: Tape, seq: int, keys: int) -> Operand:
    """(seq, keys) of int64: the row's position, which are the last, less the column's."""
    positions = tape.made("arange", INT, keys)
    rows, columns, result = tensor(INT, seq, 1), tensor(INT, 1, keys), tensor(INT, seq, keys)
    read = positions.n_bytes + (rows.n_bytes if seq < keys else 0)  # As wholes, once for both.
    tape.call("sub", (rows, columns), (result,), bytes_read=read)
    return result


# RoPE's turn of queries or keys by torch's operators: element i with element i + head_dim/2.


def rotation_forward(on: Writer, x: Value, angle_dtype: str) -> Value:
    """x (batch, heads, seq, head_dim) → the same, turned by angles whose cosines and sines are
    (seq, head_dim / 2). Nothing of it is kept."""
    low, high = _halves(on, x)
    cos, sin = _cos_and_sin(on, x.operand, angle_dtype)
    parts = []
    for combine, (a, b) in (("sub", (cos, sin)), ("add", (sin, cos))):
        first, second = on.pointwise("mul", low, a), on.pointwise("mul", high, b)
        parts.append(on.pointwise(combine, first, second))
    return on.cast(on.joined(*parts, along=3), x.operand.dtype)


def rotation_backward(on: Writer, gradient: Value, angle_dtype: str) -> Value:
    """Gradient of the turned → of x, both in x's type."""
    narrow, (cos, sin) = gradient.operand.dtype, _cos_and_sin(on, gradient.operand, angle_dtype)
    first, second = _halves(on, on.cast(gradient, angle_dtype))

    def product(x: Value, angle: Value) -> Value:
        return on.cast(on.pointwise("mul", x, angle), narrow)

    low, high = product(second, sin), product(second, cos)
    minus = on.pointwise("neg", first)  # What was subtracted.
    for sum_, each, angle in ((high, minus, sin), (low, first, cos)):
        on.timed("add", sum_, product(each, angle), output=sum_.operand)
    return on.joined(low, high, along=3)


def _halves(on: Writer, x: Value) -> tuple[Value, Value]:
    *outer, size = x.operand.shape
    half = tensor(x.operand.dtype, *outer, size // 2)
    return on.piece(x, half, 0), on.piece(x, half, size // 2)


def _cos_and_sin(on: Writer, x: Operand, dtype: str) -> tuple[Value, Value]:
    angle = tensor(dtype, x.shape[2], x.shape[3] // 2)
    return on.parameter(angle, "cos"), on.parameter(angle, "sin")


# Which keys a query may attend to, made anew in every block.


def causal_mask(tape: Tape, seq: int, window: int | None) -> Operand:
    """(seq, seq) of bool."""
    distance = distances(tape, seq, seq)
    mask = tape.pointwise("ge", distance, dtype=BOOL)
    if window is not None:
        within = tape.pointwise("lt", distance, dtype=BOOL)
        mask = tape.pointwise("bitwise_and", mask, within)
    return mask


# The mask that scaled_dot_product_attention adds to the scores: none where it is causal.


def additive_mask(plan: Plan) -> Operand | None:
    """ALiBi's bias, (1, heads, seq, keys), or a window's 0 and minus infinity, (seq, seq)."""
    if plan.shape.positions == "alibi":
        return tensor(plan.compute, 1, plan.shape.n_heads, plan.seq, plan.keys)
    return tensor(plan.compute, plan.seq, plan.seq) if _windowed(plan) else None


def make_additive_mask(tape: Tape, plan: Plan) -> None:
    """The bias with the forbidden keys filled in, or the window's as numbers."""
    if plan.shape.positions == "alibi":
        allowed = causal_mask(tape, plan.seq, plan.shape.window) if plan.masked else None
        bias = tensor(FLOAT, plan.shape.n_heads, plan.seq, plan.keys)
        bias = tape.cast(bias, plan.compute)
        if allowed is not None:
            tape.pointwise("masked_fill", bias, tape.pointwise("bitwise_not", allowed))
    elif _windowed(plan):
        as_numbers(tape, causal_mask(tape, plan.seq, plan.shape.window), plan.compute)


def as_numbers(tape: Tape, allowed: Operand, dtype: str) -> Operand:
    """0 where `allowed` (seq, seq) of bool is true, else minus infinity."""
    zero, infinity = (tape.made("scalar_tensor", dtype) for _ in range(2))
    return tape.pointwise("where", allowed, zero, infinity)


def _windowed(plan: Plan) -> bool:
    return plan.shape.window is not None and plan.shape.window < plan.seq
