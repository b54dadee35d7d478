"""A norm as CUDA carries it out, in one operator, torch's or Peakward's: it keeps its input and fp32
statistics."""

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
    y, *statistics = line.ops((plan.hidden.n_bytes, *_figures(plan)), x)
    return SavedNorm(x, tuple(statistics)), y


def forward_of_sum(line: Timeline, plan: Plan, x: int, added: int) -> tuple[SavedNorm, int, int]:
    """The residual stream and what is added to it → the sum, normalised, and the sum."""
    size = plan.hidden.n_bytes
    y, total, *statistics = line.ops((size, size, *_figures(plan)), x, added)
    return SavedNorm(total, tuple(statistics)), y, total


def backward(line: Timeline, plan: Plan, saved: SavedNorm, gradient: int, *past: int) -> int:
    """Gradient of the normalised, and of a sum that was a result too → of the input; also of the
    parameters."""
    kept = line.saved(saved.x, *saved.statistics)
    x = line.op(plan.hidden.n_bytes, gradient, *past, *kept)
    for _ in range(_vectors(plan)):
        line.gradient(plan.shape.d_model * ITEM_BYTES[plan.stored], x)
    return x


def _figures(plan: Plan) -> tuple[int, ...]:
    return (plan.tokens * ITEM_BYTES[FLOAT],) * _vectors(plan)


def _vectors(plan: Plan) -> int:
    return 2 if plan.shape.norm == "layernorm" else 1
