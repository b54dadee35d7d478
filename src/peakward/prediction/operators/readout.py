"""Final norm, head and mean cross-entropy: of the logits up to three fp32 copies at once."""

from typing import NamedTuple

from peakward.prediction.operators import linear, linear_loss, norms
from peakward.prediction.operators.linear import Linear, SavedLinear
from peakward.prediction.operators.norms import SavedNorm
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, INT, tensor
from peakward.prediction.operators.writer import Value, Writer

_SCALAR = tensor(FLOAT)


class SavedLoss(NamedTuple):
    """The tensors that the loss needs of the forward pass."""

    norm: SavedNorm
    head: SavedLinear | linear_loss.SavedLinearLoss | None
    """None of a loss with the output layer in it, where only time is asked for."""
    kept: tuple[Value, ...]
    """The likelihoods; of a lever's loss what it keeps; none of one with the output layer in it."""


def logits(on: Writer, plan: Plan, x: Value) -> tuple[SavedNorm, SavedLinear, Value]:
    """The residual stream → (batch, seq, vocab_size) in the compute type; with a cache, of the last
    positions alone."""
    plan = plan.of_readout
    with on.module("readout.norm"):
        norm = norms.forward(on, plan, x.viewed(plan.hidden))
    head_, made = linear.forward(on, head(plan), norm.y, category="logits")
    return norm.saved, head_, made


def loss(on: Writer, plan: Plan, x: Value) -> SavedLoss:
    """The residual stream → the mean cross-entropy, divided by the number of micro-batches; with the fp32
    logits there until the loss is made."""
    saved = _with_head(on, plan, x) if plan.loss_has_head else cross_entropy(on, plan, x)[0]
    on.timed("div", Value(_SCALAR), output=_SCALAR)
    return saved


def cross_entropy(on: Writer, plan: Plan, x: Value) -> tuple[SavedLoss, Value]:
    """The residual stream → the mean cross-entropy by way of the logits."""
    norm, head_, made = logits(on, plan, x)
    with on.module("readout"):
        if plan.loss_over_logits is not None:
            rows = made.viewed(tensor(plan.compute, plan.tokens, plan.shape.vocab_size))
            return SavedLoss(norm, head_, plan.loss_over_logits.forward(on, plan, rows)), rows
        wide = on.cast(made, FLOAT, category="logits")
        rows = wide.viewed(tensor(FLOAT, plan.tokens, plan.shape.vocab_size))
        (likely,) = on.call("_log_softmax", (rows,), (rows.operand,), category="logits")
        targets = _targets(on, plan)
        read = targets.operand.n_bytes + plan.tokens * 4  # Of each row, its target's element.
        scalars = (_SCALAR, _SCALAR)
        found, _ = on.for_time("nll_loss_forward", (likely, targets), scalars, bytes_read=read)
    return SavedLoss(norm, head_, (likely,)), found


def loss_backward(on: Writer, plan: Plan, saved: SavedLoss) -> Value:
    """The gradient of the logits in the compute type: through the loss's choice of a likelihood in
    each row, then through the log-softmax, each as large as the fp32 logits. Of a loss with the output
    layer in it that of the normalised stream."""
    if on.tape is not None:
        on.tape.call("ones_like", (_SCALAR,), (_SCALAR,), bytes_read=0)
        on.tape.pointwise("div", _SCALAR)
    if plan.loss_has_head:
        with on.module("readout"):
            return _with_head_backward(on, plan, saved)
    return into_logits(on, plan, saved)


def into_logits(on: Writer, plan: Plan, saved: SavedLoss) -> Value:
    """The gradient of the logits, by that of the mean cross-entropy."""
    with on.module("readout"):
        if plan.loss_over_logits is not None:
            of_logits: Value = plan.loss_over_logits.backward(on, plan, saved.kept)
            return of_logits
        (likely,) = saved.kept
        scalar, targets = on.parameter(_SCALAR, "gradient"), _targets(on, plan)
        read = targets.operand.n_bytes + 2 * _SCALAR.n_bytes  # Of the rows only the shape.
        (gradient,) = on.call(
            "nll_loss_backward",
            (scalar, likely, targets, scalar),
            (likely.operand,),
            bytes_read=read,
            category="logits",
        )
        name = "_log_softmax_backward_data"
        (gradient,) = on.call(name, (gradient, likely), (likely.operand,), category="logits")
        whole = tensor(FLOAT, plan.batch, plan.seq, plan.shape.vocab_size)
        return on.cast(gradient.viewed(whole), plan.compute, category="logits")


def backward(on: Writer, plan: Plan, saved: SavedLoss, gradient: Value) -> Value:
    """From what `loss_backward` gave to the gradient of the residual stream; also of the parameters."""
    if isinstance(saved.head, SavedLinear):
        shape = (plan.batch, plan.seq, plan.shape.vocab_size)
        gradient = gradient.viewed(tensor(plan.compute, *shape))
        gradient = linear.backward(on, saved.head, gradient, plan.stored)
    with on.module("readout.norm"):
        return norms.backward(on, plan, saved.norm, gradient)


def _with_head(on: Writer, plan: Plan, x: Value) -> SavedLoss:
    with on.module("readout.norm"):
        norm = norms.forward(on, plan, x)
    found = None
    with on.module("readout"):
        if on.tape is not None:
            linear_loss.forward(on.tape, plan)
        if on.line is not None and norm.y.place is not None:
            found = linear_loss.forward_in_memory(on.line, plan, norm.y.place)
    return SavedLoss(norm.saved, found, ())


def _with_head_backward(on: Writer, plan: Plan, saved: SavedLoss) -> Value:
    if on.tape is not None:
        linear_loss.backward(on.tape, plan)
    if on.line is not None and isinstance(saved.head, linear_loss.SavedLinearLoss):
        return Value(plan.hidden, linear_loss.backward_in_memory(on.line, plan, saved.head))
    return Value(plan.hidden)


def _targets(on: Writer, plan: Plan) -> Value:
    return on.parameter(tensor(INT, plan.tokens), "targets")


def head(plan: Plan) -> Linear:
    """The output layer, without a bias."""
    shape = plan.shape
    return Linear("readout.head", shape.d_model, shape.vocab_size, False, plan.stored, plan.compute)
