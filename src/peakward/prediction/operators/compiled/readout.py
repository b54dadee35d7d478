"""Final norm, head and mean cross-entropy in compiled code: the logits' gradient is written over them."""

from typing import NamedTuple

from peakward.prediction.operators import linear_loss
from peakward.prediction.operators.compiled import kernels
from peakward.prediction.operators.compiled.kernels import Kernels, SavedLinear
from peakward.prediction.operators.compiled.norms import SavedNorm, stream
from peakward.prediction.operators.compiled_module.loops import pads
from peakward.prediction.operators.linear_loss import saved_operands, scratch, scratch_backward
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.readout import head
from peakward.prediction.operators.tape import FLOAT, INT, of_type, tensor
from peakward.prediction.operators.writer import Value
from peakward.records.op_graph import ITEM_BYTES, Operand

_SCALAR = tensor(FLOAT)


def pads_head(plan: Plan) -> bool:
    """Whether Inductor pads the head's product, and with it the logits; then its kernels follow from rules
    (`traced`)."""
    of_16_bits = ITEM_BYTES[plan.compute] == 2 and not plan.loss_has_head
    return of_16_bits and pads(plan.tokens, plan.shape.d_model, plan.shape.vocab_size)


class SavedReadout(NamedTuple):
    """The values that the forward graph returns beside the loss."""

    norm: SavedNorm
    head: SavedLinear | None
    """None of a loss with the output layer in it."""
    rows: tuple[Value, ...]
    """The logits and of each row a maximum and a sum; of a loss with the output layer in it what it keeps."""

    @property
    def kept(self) -> tuple[Value, ...]:
        """All of it but the residual stream, which its caller has."""
        head = () if self.head is None else (self.head.x, self.head.weight)
        return (*self.norm.statistics, *head, *self.rows)


def logits(on: Kernels, plan: Plan, x: Value) -> Value:
    """The residual stream → logits in the compute type."""
    with on.module("readout.norm"):
        _, normed = stream(plan).forward(on, plan, x)
    return kernels.linear_forward(on, head(plan), normed, category="logits")[1]


def loss(on: Kernels, plan: Plan, x: Value) -> SavedReadout:
    """The residual stream → the mean cross-entropy, which eager code divides by the number of
    micro-batches."""
    with on.module("readout.norm"):
        norm, normed = stream(plan).forward(on, plan, x)
    if plan.loss_has_head:
        saved = SavedReadout(norm, None, _with_head(on, plan, normed))
    else:
        head_, made = kernels.linear_forward(on, head(plan), normed, category="logits")
        saved = SavedReadout(norm, head_, (made, *_over_logits(on, plan, made)))
    if on.tape is not None:
        on.tape.pointwise("div", _SCALAR)
    return saved


def backward(on: Kernels, plan: Plan, saved: SavedReadout) -> tuple[Value, tuple[Value, ...]]:
    """From the loss to the gradient of the residual stream, and of the head and the norm."""
    if on.tape is not None:
        on.tape.call("ones_like", (_SCALAR,), (_SCALAR,), bytes_read=0)
        on.tape.pointwise("div", _SCALAR)
    if saved.head is None:
        gradient, of_head = _with_head_backward(on, plan, saved.rows)
    else:
        of_logits = _into_logits(on, plan, saved.rows)
        narrow = kernels.linear_of_weight(on, saved.head, of_logits)
        gradient = kernels.linear_of_input(on, saved.head, of_logits)
        of_head = kernels.widened(on, saved.head, narrow)
    with on.module("readout.norm"):
        x, of_norm = stream(plan).last(on, plan, saved.norm, gradient)
    return x, (of_head, *of_norm)


def _over_logits(on: Kernels, plan: Plan, made: Value) -> tuple[Value, ...]:
    """The logits → the largest of each row and the sum of its exponentials."""
    row, targets = _row(plan), _targets(plan)
    with on.module("readout"):
        names = ("_log_softmax", *_casts(plan))
        rows = on.fused("inner_reduction", names, (made,), (row, row))
        if on.tape is not None:  # Its results are scalars, and no tensors in memory.
            inputs = (targets, _logits(plan), row, row)
            read = targets.n_bytes + _target_bytes(plan) + 2 * row.n_bytes
            names = (*names, "nll_loss_forward")
            on.tape.fused("inner_reduction", names, inputs, (_SCALAR, _SCALAR), bytes_read=read)
    return rows


def _into_logits(on: Kernels, plan: Plan, saved: tuple[Value, ...]) -> Value:
    """The logits and their rows' figures → the logits' gradient."""
    made, *rows = saved
    names = ("_log_softmax", "_log_softmax_backward_data", "nll_loss_backward", *_casts(plan))
    scalar = Value(_SCALAR)
    reads = (Value(_targets(plan)), scalar, scalar, made, *rows)
    with on.module("readout"):
        return on.fused(
            "inner_reduction", names, reads, (_logits(plan),), over=made, category="logits"
        )[0]


def _with_head(on: Kernels, plan: Plan, normed: Value) -> tuple[Value, ...]:
    """The normalised stream, in the compute type → what the loss with the output layer in it keeps."""
    with on.module("readout"):
        weight = on.narrowed(Value(head(plan).weight), plan.compute, category="weight_casts")
        if on.tape is not None:
            linear_loss.call(on.tape, plan)
    given = (normed, weight) if plan.stored != plan.compute else (normed,)
    made = on.for_memory(given, linear_loss.kept(plan), scratch=scratch(plan))
    return *saved_operands(plan, *given), *made


def _with_head_backward(on: Kernels, plan: Plan, saved: tuple[Value, ...]) -> tuple[Value, Value]:
    """The gradients of the normalised stream, in the compute type, and of the weight, in its own."""
    with on.module("readout"):
        if on.tape is not None:
            linear_loss.call_backward(on.tape, plan)
        found = linear_loss.operands(plan)
        x, weight = on.for_memory(saved, found, scratch=scratch_backward(plan))
        return x.viewed(of_type(plan.hidden, plan.compute)), on.narrowed(weight, plan.stored)


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
