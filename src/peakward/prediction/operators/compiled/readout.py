"""Final norm, head and mean cross-entropy in compiled code."""

from peakward.prediction.operators import linear_loss
from peakward.prediction.operators.compiled import linear
from peakward.prediction.operators.compiled.stream import stream
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.readout import head
from peakward.prediction.operators.tape import FLOAT, INT, Tape, tensor
from peakward.records.op_graph import Operand

_SCALAR = tensor(FLOAT)


def forward(tape: Tape, plan: Plan) -> None:
    """The residual stream → the logits in the compute type, or the loss where a backward pass follows."""
    with tape.module("readout.norm"):
        normed = stream(plan).forward(tape, plan)
    if not plan.loss_has_head:
        linear.forward(tape, head(plan), normed)
    if plan.differentiated:
        _loss(tape, plan)


def _loss(tape: Tape, plan: Plan) -> None:
    """The logits → the mean cross-entropy, which eager code divides by the number of micro-batches."""
    if plan.loss_has_head:
        with tape.module("readout"):
            linear.cast(tape, head(plan).weight, plan.compute)
            linear_loss.call(tape, plan)
        tape.pointwise("div", _SCALAR)
        return
    row, targets = _row(plan), _targets(plan)
    with tape.module("readout"):
        names = ("_log_softmax", *_casts(plan))
        tape.fused("inner_reduction", names, (_logits(plan),), (row, row))
        inputs = (targets, _logits(plan), row, row)
        read = targets.n_bytes + _target_bytes(plan) + 2 * row.n_bytes
        names = (*names, "nll_loss_forward")
        tape.fused("inner_reduction", names, inputs, (_SCALAR, _SCALAR), bytes_read=read)
    tape.pointwise("div", _SCALAR)


def backward(tape: Tape, plan: Plan) -> None:
    """From the loss to the gradient of the residual stream; also of the parameters."""
    tape.call("ones_like", (_SCALAR,), (_SCALAR,), bytes_read=0)
    tape.pointwise("div", _SCALAR)
    _until_normed(tape, plan)
    with tape.module("readout.norm"):
        stream(plan).last(tape, plan)


def _until_normed(tape: Tape, plan: Plan) -> None:
    """From the loss's gradient to that of the normalised stream, in the compute type; also of the weight."""
    with tape.module("readout"):
        if plan.loss_has_head:
            _, weight = linear_loss.call_backward(tape, plan)
            linear.cast(tape, weight, plan.stored)
            return
        row = _row(plan)
        names = ("_log_softmax", "_log_softmax_backward_data", "nll_loss_backward")
        inputs = (_targets(plan), _SCALAR, _SCALAR, _logits(plan), row, row)
        tape.fused("inner_reduction", (*names, *_casts(plan)), inputs, (_logits(plan),))
    linear.backward(tape, head(plan), _logits(plan))


def _casts(plan: Plan) -> tuple[str, ...]:
    return ("_to_copy",) if plan.compute != FLOAT else ()


def _logits(plan: Plan) -> Operand:
    return tensor(plan.compute, plan.batch, plan.seq, plan.shape.vocab_size)


def _row(plan: Plan) -> Operand:
    """Largest logit, or the logarithm of the sum of exponentials, of each position."""
    return tensor(FLOAT, plan.tokens, 1)


def _targets(plan: Plan) -> Operand:
    return tensor(INT, plan.tokens)


def _target_bytes(plan: Plan) -> int:
    """Bytes of the target's element of each row of the logits."""
    return tensor(plan.compute, plan.tokens).n_bytes
