"""Runs of blocks: kept whole, or recomputed in the backward pass (`lab/levers/checkpointing.py`)."""

import math
from typing import NamedTuple

from peakward.prediction.memory import block
from peakward.prediction.memory.block import SavedBlock
from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.plan import Plan
from peakward.records.case import Checkpointing


class SavedRun(NamedTuple):
    """A run's input and how many blocks it has; of one that is not recomputed all that its blocks
    keep, of one that is in part the results that it keeps."""

    x: int
    n_blocks: int
    blocks: tuple[SavedBlock, ...]
    dear: tuple[int, ...]


def runs(n_layers: int, mode: Checkpointing) -> list[int]:
    """How many blocks each has."""
    length = math.ceil(math.sqrt(n_layers)) if mode == "sqrt" else 1
    return [min(length, n_layers - start) for start in range(0, n_layers, length)]


def forward(
    line: Timeline, plan: Plan, n_blocks: int, mode: Checkpointing, _index: int, x: int
) -> tuple[SavedRun, int]:
    """The residual stream → behind the run."""
    if mode == "none":
        blocks, behind = _blocks(line, plan, x, n_blocks)
        return SavedRun(x, n_blocks, blocks, ()), behind
    dear: list[int] = []
    if mode == "selective":
        with line.remembering(dear):
            _, behind = _blocks(line, plan, x, n_blocks)
    else:
        _, behind = _blocks(line, plan, x, n_blocks)
    line.use(x)
    return SavedRun(x, n_blocks, (), tuple(dear)), behind


def backward(line: Timeline, plan: Plan, saved: SavedRun, gradient: int) -> int:
    """Gradient behind the run → before it."""
    blocks, left = (saved.blocks, ()) if saved.blocks else _again(line, plan, saved)
    line.use(gradient)
    for each in reversed(blocks):
        gradient = block.backward(line, plan, each, gradient)
    line.use(*line.saved(saved.x, *left))
    return gradient


def _again(
    line: Timeline, plan: Plan, saved: SavedRun
) -> tuple[tuple[SavedBlock, ...], tuple[int, ...]]:
    """The blocks, and of what selective checkpointing kept that which nobody needed."""
    with line.recalling(saved.dear) as left:
        blocks, x = _blocks(line, plan, saved.x, saved.n_blocks - 1)
        return (*blocks, block.forward_until_saved(line, plan, x)), tuple(left)


def _blocks(
    line: Timeline, plan: Plan, x: int, n_blocks: int
) -> tuple[tuple[SavedBlock, ...], int]:
    made = []
    for _ in range(n_blocks):
        saved, x = block.forward(line, plan, x)
        made.append(saved)
    return tuple(made), x
