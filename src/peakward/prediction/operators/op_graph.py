"""The operators of a step of the reference decoder, in closed form: no model is built.

The same as `lab.levers.capture` sees of the step itself, operator by operator, for eager execution
as torch dispatches it on a CPU or on CUDA. The functions of this room follow the decoder's, line by
line; where the two devices differ, `Plan.device` or `Plan.attention` says which. Of blocks and a
readout that are compiled (`compiled/`), the kernels that Inductor makes stand in place of what they
fuse; the rest of the step is eager. A captured step has the same operators, replayed, and copies of
its batch.

CUDA's operators are those of torch 2.11; which fused attention it chooses depends on the GPU also
(`attention_backend`). Of a step of fp16 they are those in which no infinity was found, of a mixture of
experts those of balanced routing (`experts`).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from peakward.hardware.attention_backend import HOPPER, ComputeCapability
from peakward.prediction.operators import block, loss_scaling, positions, readout, recomputation
from peakward.prediction.operators.adamw import Implementation, adamw
from peakward.prediction.operators.compiled import block as compiled_block
from peakward.prediction.operators.compiled import readout as compiled_readout
from peakward.prediction.operators.compiled.coverage import expect_covered
from peakward.prediction.operators.plan import Plan, plan
from peakward.prediction.operators.tape import FLOAT, INT, Tape, tensor
from peakward.prediction.operators.weights import weights
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.case import Checkpointing, ModelCase
from peakward.records.op_graph import OpGraph


class _Parts(NamedTuple):
    """The parts that `compile` compiles."""

    block: Callable[[Tape, Plan], None]
    block_backward: Callable[[Tape, Plan], None]
    readout: Callable[[Tape, Plan], None]
    """To the loss where a backward pass follows, else to the logits."""
    readout_backward: Callable[[Tape, Plan], None]


def _block(tape: Tape, plan: Plan) -> None:
    block.forward(Writer(tape), plan, Value(plan.hidden))


def _block_backward(tape: Tape, plan: Plan) -> None:
    saved, _ = block.forward(Writer(), plan, Value(plan.hidden))
    block.backward(Writer(tape), plan, saved, Value(plan.hidden))


def _readout(tape: Tape, plan: Plan) -> None:
    on, x = Writer(tape), Value(plan.hidden)
    if plan.differentiated:
        readout.loss(on, plan, x)
    else:
        readout.logits(on, plan, x)


def _readout_backward(tape: Tape, plan: Plan) -> None:
    saved = readout.loss(Writer(), plan, Value(plan.hidden))
    on = Writer(tape)
    readout.backward(on, plan, saved, readout.loss_backward(on, plan, saved))


_EAGER = _Parts(_block, _block_backward, _readout, _readout_backward)
_COMPILED = _Parts(
    compiled_block.forward,
    compiled_block.backward,
    compiled_readout.forward,
    compiled_readout.backward,
)


@lru_cache(maxsize=256)
def op_graph(case: ModelCase, *, compute_capability: ComputeCapability = HOPPER) -> OpGraph:
    """The operators of one step, in which the optimiser's state is already there.

    Args:
        case: what is run.
        compute_capability: of the GPU, 9.0 for an H100 or H200; it means nothing for a CPU.

    Raises:
        PeakwardError: a setting that is not covered, or an attention kernel that torch would not
            run on such inputs.
    """
    planned, tape, workload = plan(case, compute_capability), Tape(), case.workload
    parts = _parts(case, planned)
    with tape.times(workload.accumulate):
        if case.configuration.cuda_graphs:
            _batch_into_graph(tape, planned)
        _forward(tape, planned, parts)
        if workload.trains:
            with tape.phase("backward"):
                _backward(tape, planned, parts, case.configuration.checkpointing)
    if workload.trains:
        with tape.phase("backward"), tape.times(workload.accumulate - 1):
            _accumulate(tape, planned)
    if workload.pass_ == "train_step":
        with tape.phase("optimizer"):
            _update(tape, planned, _implementation(case))
    return tape.graph()


def _parts(case: ModelCase, planned: Plan) -> _Parts:
    if case.configuration.compile == "none":
        return _EAGER
    expect_covered(case, planned)
    return _COMPILED


def _batch_into_graph(tape: Tape, planned: Plan) -> None:
    """Ids, and targets where the batch has them, to where the captured step reads them
    (`lab/levers/configured_step.py`)."""
    batch = tensor(INT, planned.batch, planned.seq)
    for _ in ("ids",) if planned.cached else ("ids", "targets"):
        tape.call("copy_", (batch, batch), (batch,), bytes_read=batch.n_bytes)


def _forward(tape: Tape, planned: Plan, parts: _Parts) -> None:
    positions.forward(tape, planned)
    with tape.times(planned.shape.n_layers):
        parts.block(tape, planned)
    parts.readout(tape, planned)


def _backward(tape: Tape, planned: Plan, parts: _Parts, checkpointing: Checkpointing) -> None:
    if planned.loss_scaled:
        loss_scaling.scale(tape)
    parts.readout_backward(tape, planned)
    recomputation.again(tape, planned, checkpointing)
    with tape.times(planned.shape.n_layers):
        parts.block_backward(tape, planned)
    positions.backward(tape, planned)


def _implementation(case: ModelCase) -> Implementation:
    configuration = case.configuration
    over_lists = configuration.optimizer == "adamw-foreach"
    return (
        "adamw-foreach-captured"
        if over_lists and configuration.cuda_graphs
        else configuration.optimizer
    )


def _update(tape: Tape, planned: Plan, optimizer: Implementation) -> None:
    if planned.loss_scaled:
        loss_scaling.unscale(tape, planned)
    adamw(tape, planned, optimizer)
    if planned.loss_scaled:
        loss_scaling.update(tape)


def _accumulate(tape: Tape, planned: Plan) -> None:
    """Adds each micro-batch but the first to every gradient and to the loss."""
    for weight in weights(planned):
        with tape.module(weight.module), tape.times(weight.n):
            tape.changed("add_", weight.tensor, weight.tensor)
    tape.pointwise("add", tensor(FLOAT), tensor(FLOAT))
