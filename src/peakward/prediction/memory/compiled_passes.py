"""Passes of a model whose blocks and readout are compiled, each by itself, between what stays eager."""

from typing import NamedTuple

from peakward.prediction.memory import passes
from peakward.prediction.memory.compiled_code import carried_out
from peakward.prediction.memory.passes import Passes
from peakward.prediction.memory.timeline import Timeline, workspace
from peakward.prediction.operators.compiled import block, readout
from peakward.prediction.operators.compiled.block import SavedBlock, is_profiled
from peakward.prediction.operators.compiled.graph import Buffer, Graph
from peakward.prediction.operators.compiled.kernels import Kernels
from peakward.prediction.operators.compiled.readout import pads_head
from peakward.prediction.operators.compiled.traced import Traced, traced_block, traced_readout
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.writer import Value
from peakward.records.case import Checkpointing, ModelCase
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
        x, lambda i, x: _block(line, plan, "none", x, tuning=tuning and i == 0)
    )
    if pads_head(plan):
        _, made = _traced(line, plan, traced_readout(plan), x, tuning=tuning)
    else:
        on = Kernels(graph=Graph())
        logits = readout.logits(on, plan, on.given(plan.hidden, x))
        (made,) = _run(on, line, logits, tuning=tuning)
    line.use(x, made, *shared)


def forward_backward(
    line: Timeline, plan: Plan, checkpointing: Checkpointing, *, first: bool, tuning: bool
) -> None:
    """To the loss and back: all blocks are launched as one code, which only the first one tunes."""
    x, shared = passes.embedding_forward(line, plan)
    blocks = Passes[_Saved](line, plan.shape.n_layers, tuned=tuning)
    of_blocks = tuning

    def backward_of(saved: _Saved, gradient: int) -> int:
        nonlocal of_blocks
        gradient = _block_backward(line, plan, checkpointing, saved, gradient, tuning=of_blocks)
        of_blocks = False
        return gradient

    x = blocks.forward(
        x, lambda i, x: _block(line, plan, checkpointing, x, tuning=tuning and i == 0)
    )
    turn = _loss_by_rules if pads_head(plan) else _loss
    gradient = turn(line, plan, x, shared, first=first, tuning=tuning)
    gradient = blocks.backward(gradient, backward_of)
    passes.embedding_backward(line, plan, gradient)
    line.use(*line.saved(*shared))


def _loss(
    line: Timeline, plan: Plan, x: int, shared: tuple[int, ...], *, first: bool, tuning: bool
) -> int:
    """The residual stream behind the blocks → its gradient."""
    on = Kernels(graph=Graph())
    end = readout.loss(on, plan, on.given(plan.hidden, x))
    _run(on, line, *end.kept, tuning=tuning)
    line.use(x, *shared)
    _turn(line, first=first)
    on = on.behind(Graph())
    of_x, weights = readout.backward(on, plan, end)
    line.saved(*on.places(*end.kept))
    gradient, *made = _run(on, line, of_x, *weights, tuning=tuning)
    line.gradients(*made)
    line.use(x)
    return gradient


def _loss_by_rules(
    line: Timeline, plan: Plan, x: int, shared: tuple[int, ...], *, first: bool, tuning: bool
) -> int:
    found = traced_readout(plan)
    saved, _ = _traced(line, plan, found, x, tuning=tuning)
    line.use(x, *shared)
    _turn(line, first=first)
    return _traced_backward(line, plan, found, saved, tuning=tuning)


def _turn(line: Timeline, *, first: bool) -> None:
    line.enter("backward")
    if first:
        workspace(line)


# One block.


class _Profiled(NamedTuple):
    """A block's input, and what its forward graph returned, as the kernels' writer has it."""

    x: int
    on: Kernels
    block: SavedBlock


class _Traced(NamedTuple):
    """A part's input, and the places of what its forward graph returned, by value."""

    x: int
    kept: dict[int, int]


_Saved = _Profiled | _Traced


def _block(
    line: Timeline, plan: Plan, checkpointing: Checkpointing, x: int, *, tuning: bool
) -> tuple[_Saved, int]:
    """The residual stream → behind the block. x is there to the end: its caller has it."""
    if not is_profiled(plan, checkpointing):
        return _traced(line, plan, traced_block(plan, checkpointing), x, tuning=tuning)
    on = Kernels(graph=Graph())
    saved, behind = block.forward(on, plan, on.given(plan.hidden, x))
    kept = saved.kept if plan.differentiated else ()
    made, *_ = _run(on, line, behind, *kept, tuning=tuning)
    line.use(x)
    return _Profiled(x, on, saved), made


def _block_backward(
    line: Timeline,
    plan: Plan,
    checkpointing: Checkpointing,
    saved: _Saved,
    gradient: int,
    *,
    tuning: bool,
) -> int:
    """Gradient behind the block → before it; also of all parameters."""
    if isinstance(saved, _Traced):
        found = traced_block(plan, checkpointing)
        return _traced_backward(line, plan, found, saved, gradient, tuning=tuning)
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


# A part whose kernels follow from rules.


def _traced(
    line: Timeline, plan: Plan, found: Traced, x: int, *, tuning: bool
) -> tuple[_Traced, int]:
    """The residual stream → the part's result."""
    code, buffers = found.code, {found.x: Buffer(plan.hidden, x)}
    wanted = {found.behind, *code.saved}
    results = carried_out(line, code.forward, buffers, wanted, tuning=tuning)
    line.use(x)
    kept = {value: buffers[value].place for value in code.saved if value in buffers}
    return _Traced(x, kept), results[found.behind].place


def _traced_backward(
    line: Timeline, plan: Plan, found: Traced, saved: _Traced, *gradient: int, tuning: bool
) -> int:
    """Gradient behind a block, if it is one → before the part; also of all parameters."""
    assert found.before is not None
    values = found.code.values
    buffers = {each: Buffer(values[each].operand, place) for each, place in saved.kept.items()}
    if found.given is not None:
        buffers[found.given] = Buffer(plan.hidden, *gradient)
    line.saved(*saved.kept.values())
    results = carried_out(
        line,
        found.code.backward,
        buffers,
        found.leaving,
        donated=saved.kept.keys() - {found.x},
        scratch=found.scratch,
        tuning=tuning,
    )
    made = results.pop(found.before).place
    line.use(*gradient)
    line.gradients(*(each.place for each in results.values()))
    line.use(*line.saved(saved.x))
    return made
