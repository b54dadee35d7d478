"""Token embedding and what tells positions: learned rows, sinusoids, ALiBi's bias, RoPE's angles."""

from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, INT, Tape, tensor
from peakward.records.op_graph import Operand


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
        tape.pointwise("add", hidden, _sinusoids(tape, plan))
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
    slopes = tape.pointwise("neg", tensor(FLOAT, plan.shape.n_heads, 1, 1))
    tape.pointwise("mul", slopes, distance)


def distances(tape: Tape, seq: int, keys: int) -> Operand:
    """(seq, keys) of int64: the row's position, which are the last, less the column's."""
    positions = tape.made("arange", INT, keys)
    rows, columns, result = tensor(INT, seq, 1), tensor(INT, 1, keys), tensor(INT, seq, keys)
    read = positions.n_bytes + (rows.n_bytes if seq < keys else 0)  # As wholes, once for both.
    tape.call("sub", (rows, columns), (result,), bytes_read=read)
    return result
