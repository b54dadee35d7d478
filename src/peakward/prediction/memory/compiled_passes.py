"""Passes of a model whose blocks and readout are compiled, each by itself, between what stays eager."""

from typing import NamedTuple

from peakward.prediction.memory import passes
from peakward.prediction.memory.passes import Passes
from peakward.prediction.memory.timeline import Timeline, workspace
from peakward.prediction.operators.compiled import block, readout
from peakward.prediction.operators.compiled.block import SavedBlock
from peakward.prediction.operators.compiled.graph import Graph
from peakward.prediction.operators.compiled.kernels import Kernels
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.writer import Value
from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError


def covers(case: ModelCase, plan: Plan) -> bool:
    """Whether what the compiled step holds is known; of what else is compiled the eager step stands in
    its place."""
    if case.configuration.compile != "default":
        return False
    try:
        block.expect_covered(case, plan)
    except PeakwardError:
        return False
    return True


def forward(line: Timeline, plan: Plan, *, tuning: bool) -> None:
    """Without gradients, to the logits."""
    x, shared = passes.embedding_forward(line, plan)
    x = Passes[object](line, plan.shape.n_layers, tuned=tuning).forward(
        x, lambda i, x: _block(line, plan, x, tuning=tuning and i == 0)
    )
    on = Kernels(graph=Graph())
    logits = readout.logits(on, plan, on.given(plan.hidden, x))
    (made,) = _run(on, line, logits, tuning=tuning)
    line.use(x, made, *shared)


def forward_backward(line: Timeline, plan: Plan, *, first: bool, tuning: bool) -> None:
    """To the loss and back: all blocks are launched as one code, which only the first one tunes."""
    x, shared = passes.embedding_forward(line, plan)
    blocks = Passes[_Saved](line, plan.shape.n_layers, tuned=tuning)

    def backward_of(saved: _Saved, gradient: int) -> int:
        nonlocal tuning
        gradient = _block_backward(line, plan, saved, gradient, tuning=tuning)
        tuning = False
        return gradient

    x = blocks.forward(x, lambda i, x: _block(line, plan, x, tuning=tuning and i == 0))
    on = Kernels(graph=Graph())
    end = readout.loss(on, plan, on.given(plan.hidden, x))
    _run(on, line, *end.kept, tuning=tuning)
    line.use(x, *shared)
    line.enter("backward")
    if first:
        workspace(line)
    on = on.behind(Graph())
    of_x, weights = readout.backward(on, plan, end)
    line.saved(*on.places(*end.kept))
    gradient, *made = _run(on, line, of_x, *weights, tuning=tuning)
    line.gradients(*made)
    line.use(x)
    gradient = blocks.backward(gradient, backward_of)
    passes.embedding_backward(line, plan, gradient)
    line.use(*line.saved(*shared))


class _Saved(NamedTuple):
    """A block's input, and what its forward graph returned, as the kernels' writer has it."""

    x: int
    on: Kernels
    block: SavedBlock


def _block(line: Timeline, plan: Plan, x: int, *, tuning: bool) -> tuple[_Saved, int]:
    """The residual stream → behind the block. x is there to the end: its caller has it."""
    on = Kernels(graph=Graph())
    saved, behind = block.forward(on, plan, on.given(plan.hidden, x))
    kept = saved.kept if plan.differentiated else ()
    made, *_ = _run(on, line, behind, *kept, tuning=tuning)
    line.use(x)
    return _Saved(x, on, saved), made


def _block_backward(
    line: Timeline, plan: Plan, saved: _Saved, gradient: int, *, tuning: bool
) -> int:
    """Gradient behind the block → before it; also of all parameters."""
    on = saved.on.behind(Graph())
    before, weights = block.backward(on, plan, saved.block, on.given(plan.hidden, gradient))
    line.saved(*on.places(*saved.block.kept))
    made, *of_weights = _run(on, line, before, *weights, tuning=tuning)
    line.use(gradient)
    line.gradients(*of_weights)
    line.use(*line.saved(saved.x))
    return made


def _run(on: Kernels, line: Timeline, *results: Value, tuning: bool) -> tuple[int, ...]:
    """Carries the graph out on a timeline; gives where its results are."""
    assert on.graph is not None
    on.graph.run(line, *on.buffers(*results), tuning=tuning)
    return on.places(*results)
