"""Passes of a model whose blocks and readout are compiled, each by itself, between what stays eager."""

from peakward.prediction.memory import embedding
from peakward.prediction.memory.compiled import block, readout
from peakward.prediction.memory.compiled.block import SavedBlock
from peakward.prediction.memory.repeated import Passes
from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.memory.workspace import workspace
from peakward.prediction.operators.compiled import coverage
from peakward.prediction.operators.plan import Plan
from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError


def covers(case: ModelCase, plan: Plan) -> bool:
    """Whether what the compiled step holds is known; of what else is compiled the eager step stands in
    its place."""
    if case.configuration.compile != "default":
        return False
    try:
        coverage.expect_covered(case, plan)
    except PeakwardError:
        return False
    return True


def forward(line: Timeline, plan: Plan, *, tuning: bool) -> None:
    """Without gradients, to the logits."""
    x, shared = embedding.forward(line, plan)
    x = Passes[object](line, plan.shape.n_layers, tuned=tuning).forward(
        x, lambda i, x: block.forward(line, plan, x, tuning=tuning and i == 0)
    )
    logits = readout.logits(line, plan, x, tuning=tuning)
    line.use(x, logits, *shared)


def forward_backward(line: Timeline, plan: Plan, *, first: bool, tuning: bool) -> None:
    """To the loss and back: all blocks are launched as one code, which only the first one tunes."""
    x, shared = embedding.forward(line, plan)
    blocks = Passes[tuple[int, SavedBlock]](line, plan.shape.n_layers, tuned=tuning)

    def forward_of(i: int, x: int) -> tuple[tuple[int, SavedBlock], int]:
        kept, behind = block.forward(line, plan, x, tuning=tuning and i == 0)
        return (x, kept), behind

    def backward_of(saved: tuple[int, SavedBlock], gradient: int) -> int:
        nonlocal tuning
        before, kept = saved
        gradient = block.backward(line, plan, kept, gradient, tuning=tuning)
        line.use(*line.saved(before))
        tuning = False
        return gradient

    x = blocks.forward(x, forward_of)
    end = readout.loss(line, plan, x, tuning=tuning)
    line.use(x, *shared)
    line.enter("backward")
    if first:
        workspace(line)
    gradient = readout.backward(line, plan, end, tuning=tuning)
    line.use(x)
    gradient = blocks.backward(gradient, backward_of)
    embedding.backward(line, plan, gradient)
    line.use(*line.saved(*shared))
