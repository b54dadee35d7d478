"""The operators of a step of the reference decoder, in closed form: no model is built.

The same as `lab.levers.capture` sees of the step itself, operator by operator, for eager execution
as torch dispatches it on a CPU. The functions of this room follow the decoder's, line by line.

CUDA is refused. There RMSNorm is one operator (`aten._fused_rms_norm`, and one backward), a norm's
statistics are fp32 whatever its input, and which fused attention runs, with what padding and
mask, is chosen by GPU, type and sizes.
"""

import math

from peakward.predict.operators import block, positions, readout
from peakward.predict.operators.adamw import adamw
from peakward.predict.operators.plan import Plan, plan
from peakward.predict.operators.tape import FLOAT, Tape, tensor
from peakward.predict.operators.weights import weights
from peakward.records.case import Checkpointing, ModelCase
from peakward.records.op_graph import OpGraph


def op_graph(case: ModelCase) -> OpGraph:
    """The operators of one step, in which the optimiser's state is already there.

    Raises:
        PeakwardError: a setting that is not covered.
    """
    planned, tape, workload = plan(case), Tape(), case.workload
    with tape.times(workload.accumulate):
        _forward(tape, planned)
        if workload.pass_ != "forward":
            readout.loss(tape, planned)
            with tape.phase("backward"):
                _backward(tape, planned, case.configuration.checkpointing)
    if workload.pass_ != "forward":
        with tape.phase("backward"), tape.times(workload.accumulate - 1):
            _accumulate(tape, planned)
    if workload.pass_ == "train_step":
        with tape.phase("optimizer"):
            adamw(tape, planned, case.configuration.optimizer)
    return tape.graph()


def _forward(tape: Tape, planned: Plan) -> None:
    positions.forward(tape, planned)
    with tape.times(planned.shape.n_layers):
        block.forward(tape, planned)
    readout.logits(tape, planned)


def _backward(tape: Tape, planned: Plan, checkpointing: Checkpointing) -> None:
    readout.backward(tape, planned)
    n_segments = _n_segments(planned.shape.n_layers, checkpointing)
    if n_segments:
        with tape.times(planned.shape.n_layers - n_segments):
            block.forward(tape, planned)
        with tape.times(n_segments):
            block.forward_until_saved(tape, planned)
    with tape.times(planned.shape.n_layers):
        block.backward(tape, planned)
    positions.backward(tape, planned)


def _n_segments(n_layers: int, checkpointing: Checkpointing) -> int:
    """Runs of blocks that are recomputed as one (`lab/levers/checkpointing.py`)."""
    if checkpointing == "none":
        return 0
    length = math.ceil(math.sqrt(n_layers)) if checkpointing == "sqrt" else 1
    return math.ceil(n_layers / length)


def _accumulate(tape: Tape, planned: Plan) -> None:
    """What each micro-batch but the first adds: to every gradient, and to the loss."""
    for weight in weights(planned):
        with tape.module(weight.module), tape.times(weight.n):
            tape.changed("add_", weight.tensor, weight.tensor)
    tape.pointwise("add", tensor(FLOAT), tensor(FLOAT))
