"""A norm as CUDA carries it out, in one operator: it keeps its input and fp32 statistics."""

from typing import NamedTuple

from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT
from peakward.records.op_graph import ITEM_BYTES


class SavedNorm(NamedTuple):
    """The input, and for each position its deviation and in LayerNorm its mean."""

    x: int
    statistics: tuple[int, ...]


def forward(line: Timeline, plan: Plan, x: int) -> tuple[SavedNorm, int]:
    """The residual stream → the same, normalised."""
    figures = (plan.tokens * ITEM_BYTES[FLOAT],) * _vectors(plan)
    y, *statistics = line.ops((plan.hidden.n_bytes, *figures), x)
    return SavedNorm(x, tuple(statistics)), y


def backward(line: Timeline, plan: Plan, saved: SavedNorm, gradient: int) -> int:
    """Gradient of the normalised → of the input; also of the parameters."""
    kept = line.saved(saved.x, *saved.statistics)
    x = line.op(plan.hidden.n_bytes, gradient, *kept)
    for _ in range(_vectors(plan)):
        line.gradient(plan.shape.d_model * ITEM_BYTES[plan.stored], x)
    return x


def _vectors(plan: Plan) -> int:
    return 2 if plan.shape.norm == "layernorm" else 1
