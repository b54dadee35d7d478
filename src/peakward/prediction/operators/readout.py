"""Final norm, head and mean cross-entropy."""

from peakward.prediction.operators import linear, linear_loss, norms
from peakward.prediction.operators.linear import Linear
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, INT, Tape, tensor
from peakward.records.op_graph import Operand


def logits(tape: Tape, plan: Plan) -> None:
    """The residual stream → (batch, seq, vocab_size) in the compute type; with a cache, of the last
    positions alone."""
    plan = plan.of_readout
    with tape.module("readout.norm"):
        normed = norms.forward(tape, plan)
    if not plan.loss_has_head:
        linear.forward(tape, head(plan), normed)


def loss(tape: Tape, plan: Plan) -> None:
    """The logits → the mean cross-entropy, divided by the number of micro-batches."""
    if plan.loss_has_head:
        with tape.module("readout"):
            linear_loss.forward(tape, plan)
        tape.pointwise("div", tensor(FLOAT))
        return
    if plan.loss == "fused":
        _own_loss(tape, plan)
        return
    scalar, targets = tensor(FLOAT), tensor(INT, plan.tokens)
    with tape.module("readout"):
        tape.cast(_logits(plan, plan.compute), FLOAT)
        rows = tape.pointwise("_log_softmax", _rows(plan))
        read = targets.n_bytes + plan.tokens * 4  # Of each row, its target's element.
        tape.call("nll_loss_forward", (rows, targets), (scalar, scalar), bytes_read=read)
    tape.pointwise("div", scalar)


def backward(tape: Tape, plan: Plan) -> None:
    """From the loss to the gradient of the residual stream; also of the parameters."""
    scalar, targets, rows = tensor(FLOAT), tensor(INT, plan.tokens), _rows(plan)
    tape.call("ones_like", (scalar,), (scalar,), bytes_read=0)
    tape.pointwise("div", scalar)
    if plan.loss_has_head:
        with tape.module("readout"):
            linear_loss.backward(tape, plan)
        with tape.module("readout.norm"):
            norms.backward(tape, plan)
        return
    gradient = _logits(plan, plan.compute)
    with tape.module("readout"):
        if plan.loss == "fused":
            _own_loss_backward(tape, plan)
        else:
            inputs = (scalar, rows, targets, scalar)
            read = targets.n_bytes + 2 * scalar.n_bytes  # Of the rows only the shape.
            tape.call("nll_loss_backward", inputs, (rows,), bytes_read=read)
            tape.pointwise("_log_softmax_backward_data", rows, rows)
            tape.cast(_logits(plan, FLOAT), plan.compute)
    linear.backward(tape, head(plan), gradient, plan.stored)
    with tape.module("readout.norm"):
        norms.backward(tape, plan)


def _own_loss(tape: Tape, plan: Plan) -> None:
    """Peakward's: the loss, and of each row its log-sum-exp, maximum and sum of exponentials."""
    scalar, targets = tensor(FLOAT), tensor(INT, plan.tokens)
    outputs = (scalar, tensor(FLOAT, plan.tokens), _row_sums(plan), scalar)
    with tape.module("readout"):
        tape.own("cross_entropy_over_logits", (_own_rows(plan), targets), outputs)
    tape.pointwise("div", scalar)


def _own_loss_backward(tape: Tape, plan: Plan) -> None:
    """The logits become their gradient."""
    rows, scalar, targets = _own_rows(plan), tensor(FLOAT), tensor(INT, plan.tokens)
    inputs = (rows, targets, _row_sums(plan), scalar, scalar)
    tape.own("cross_entropy_backward_over_logits", inputs, (rows,))


def _own_rows(plan: Plan) -> Operand:
    return tensor(plan.compute, plan.tokens, plan.shape.vocab_size)


def _row_sums(plan: Plan) -> Operand:
    return tensor(FLOAT, plan.tokens, 2)


def head(plan: Plan) -> Linear:
    """The output layer, without a bias."""
    shape = plan.shape
    return Linear("readout.head", shape.d_model, shape.vocab_size, False, plan.stored, plan.compute)


def _logits(plan: Plan, dtype: str) -> Operand:
    return tensor(dtype, plan.batch, plan.seq, plan.shape.vocab_size)


def _rows(plan: Plan) -> Operand:
    return tensor(FLOAT, plan.tokens, plan.shape.vocab_size)
