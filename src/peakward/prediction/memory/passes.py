"""Passes over a model's layers, on a timeline: the embedding, and runs of blocks."""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from peakward.prediction.memory.timeline import Mark, Saved, Timeline
from peakward.prediction.operators import block
from peakward.prediction.operators.block import SavedBlock
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, INT
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.case import Checkpointing
from peakward.records.op_graph import ITEM_BYTES

# Token embedding and what tells positions.


def embedding_forward(line: Timeline, plan: Plan) -> tuple[int, tuple[int, ...]]:
    """Ids → the residual stream, and what every block shares."""
    shape = plan.shape
    x = line.op(plan.hidden.n_bytes)
    if shape.positions == "learned":
        x = line.op(plan.hidden.n_bytes, x)
    elif shape.positions == "sinusoidal":
        rows = line.op(plan.seq * shape.d_model * ITEM_BYTES[FLOAT])
        x = line.op(plan.hidden.n_bytes, x, rows)
    elif shape.positions == "rope":
        angles = plan.seq * shape.head_dim // 2 * ITEM_BYTES[plan.stored]
        return x, line.ops((angles, angles))
    else:
        square = plan.seq * plan.keys
        distance = line.op(square * ITEM_BYTES[INT], line.op(square * ITEM_BYTES[INT]))
        return x, (line.op(square * shape.n_heads * ITEM_BYTES[FLOAT], distance),)
    return x, ()


def embedding_backward(line: Timeline, plan: Plan, gradient: int) -> None:
    """Gradient of the residual stream → of the tables. A tied one has the head's there already, to
    which it is added."""
    shape, size = plan.shape, ITEM_BYTES[plan.stored]
    if shape.positions == "learned":
        rows = line.op(plan.seq * shape.d_model * size, gradient)
        line.gradient(shape.max_seq_len * shape.d_model * size, rows)
    elif shape.positions == "sinusoidal":
        gradient = line.op(plan.hidden.n_bytes, gradient)
    # The ids, sorted, and where each came from (ATen/native/cuda/Embedding.cu).
    sorting = (plan.tokens * ITEM_BYTES[INT],) * 4
    scratch = line.ops(sorting, gradient)
    table = shape.vocab_size * shape.d_model * size
    if shape.tied_head:
        line.op(table, gradient, *scratch)
    else:
        line.gradient(table, gradient, *scratch)


# Runs of blocks: kept whole, or recomputed in the backward pass (`lab/levers/compilation.py`).


class SavedRun(NamedTuple):
    """A run's input and how many blocks it has; of one that is not recomputed all that its blocks
    keep, of one that is in part the results that it keeps."""

    x: Value
    n_blocks: int
    blocks: tuple[SavedBlock, ...]
    dear: tuple[int, ...]


def run_forward(
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


def run_backward(line: Timeline, plan: Plan, saved: SavedRun, gradient: int) -> int:
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


# Runs of blocks that are alike: the first and the last are walked, those between repeat their neighbour.
#
# A model of 32 blocks then costs what one of 4 does: a walk of one takes some 0.5 ms, and every plan asks
# for thousands.

S = TypeVar("S")


class Passes(Generic[S]):
    """Forward passes of n runs that are alike, and then their backward passes.

    What the first one is given is no run's result, so that the second is the one to repeat; where the code of
    the first one is tuned as it runs, forward or backward, the third.
    """

    def __init__(self, line: Timeline, n: int, *, tuned: bool = False) -> None:
        self._line, self._n = line, n
        self._walked = 3 if tuned else 2
        """At either end, where there is one between them."""
        self._repeats = n > 2 * self._walked
        self._saved: dict[int, S] = {}
        self._starts: dict[int, int] = {}

    def forward(self, x: int, walk: Callable[[int, int], tuple[S, int]]) -> int:
        """Input of the first run → result of the last.

        Args:
            x: the residual stream.
            walk: carries out the run of that index: input → what it saves, and its result.
        """
        marks: list[Mark] = []
        between = range(self._walked, self._n - self._walked) if self._repeats else range(0)
        for i in range(self._n):
            if between and i == between.start:
                x += len(between) * self._line.again(marks[-2], marks[-1], len(between))
            if i not in between:
                marks.append(self._line.mark())
                self._starts[i] = marks[-1].n_tensors
                self._saved[i], x = walk(i, x)
        return x

    def backward(self, gradient: int, walk: Callable[[S, int], int]) -> int:
        """Gradient behind the last → before the first.

        Args:
            gradient: of the residual stream.
            walk: what a run saved and the gradient behind it → before it.
        """
        marks: list[Mark] = []
        last = self._n - self._walked
        between = range(self._walked - 1, last) if self._repeats else range(0)
        for i in reversed(range(self._n)):
            if between and i == between.start:
                start, stop = self._starts[last], self._starts[last + 1]
                passes = Saved(2 * start - stop, stop, stop - start)
                shift = self._line.again(marks[-2], marks[-1], len(between), passes)
                if gradient >= marks[-1].n_tensors:
                    gradient += len(between) * shift
            if i not in between:
                marks.append(self._line.mark())
                gradient = walk(self._saved[i], gradient)
        return gradient
