"""Runs of blocks: kept whole, or recomputed in the backward pass (`lab/levers/compilation.py`)."""

from typing import NamedTuple

from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators import block
from peakward.prediction.operators.block import SavedBlock
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.case import Checkpointing


class SavedRun(NamedTuple):
    """A run's input and how many blocks it has; of one that is not recomputed all that its blocks
    keep, of one that is in part the results that it keeps."""

    x: Value
    n_blocks: int
    blocks: tuple[SavedBlock, ...]
    dear: tuple[int, ...]


def forward(
    line: Timeline, plan: Plan, n_blocks: int, mode: Checkpointing, _index: int, x: int
) -> tuple[SavedRun, int]:
    """The residual stream → behind the run."""
    on, given = Writer(line=line), Value(plan.hidden, x)
    dear: list[int] = []
    if mode == "selective":
        with line.remembering(dear):
            blocks, behind = _blocks(on, plan, given, n_blocks)
    else:
        blocks, behind = _blocks(on, plan, given, n_blocks)
    if mode != "none":
        line.use(x)
        blocks = ()
    return SavedRun(given, n_blocks, blocks, tuple(dear)), behind.there


def backward(line: Timeline, plan: Plan, saved: SavedRun, gradient: int) -> int:
    """Gradient behind the run → before it."""
    on, given = Writer(line=line), Value(plan.hidden, gradient)
    blocks, left = (saved.blocks, ()) if saved.blocks else _again(on, line, plan, saved)
    on.use(given)
    for each in reversed(blocks):
        given = block.backward(on, plan, each, given)
    line.use(*line.saved(saved.x.there, *left))
    return given.there


def _again(
    on: Writer, line: Timeline, plan: Plan, saved: SavedRun
) -> tuple[tuple[SavedBlock, ...], tuple[int, ...]]:
    """The blocks, and of what selective checkpointing kept that which nobody needed."""
    with line.recalling(saved.dear) as left:
        blocks, x = _blocks(on, plan, saved.x, saved.n_blocks - 1)
        return (*blocks, block.forward_until_saved(on, plan, x)), tuple(left)


def _blocks(
    on: Writer, plan: Plan, x: Value, n_blocks: int
) -> tuple[tuple[SavedBlock, ...], Value]:
    made = []
    for _ in range(n_blocks):
        saved, x = block.forward(on, plan, x)
        made.append(saved)
    return tuple(made), x
