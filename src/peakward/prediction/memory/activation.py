"""Between the two products of a feed-forward network: the activation, and the gate's product."""

from typing import NamedTuple

from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.plan import Plan
from peakward.records.op_graph import ITEM_BYTES


class SavedActivation(NamedTuple):
    """What came out of the first product, and its activation; of Peakward's SwiGLU the first is all."""

    widened: int
    activated: int


def forward(line: Timeline, plan: Plan, widened: int, rows: int) -> tuple[SavedActivation, int]:
    """The activation, and what goes into the second product: its product with the other half."""
    width = _width(plan, rows)
    if plan.swiglu == "fused":
        return SavedActivation(widened, widened), line.op(width, widened)
    activated = line.op(width, widened)
    product = line.op(width, activated, widened) if plan.shape.gated else activated
    return SavedActivation(widened, activated), product


def backward(line: Timeline, plan: Plan, saved: SavedActivation, product: int, rows: int) -> int:
    """Gradient of what goes into the second product → of what came out of the first."""
    width = _width(plan, rows)
    line.saved(*saved)
    if plan.swiglu == "fused":
        return line.op(2 * width, product, saved.widened)
    if not plan.shape.gated:
        kept = saved.activated if plan.shape.activation == "relu" else saved.widened
        return line.op(width, product, kept)
    activated = line.op(width, product, saved.widened)
    other = line.op(width, product, saved.activated)
    gate = line.op(width, activated, saved.widened)
    return line.op(2 * width, gate, other)


def _width(plan: Plan, rows: int) -> int:
    return rows * plan.shape.d_ff * ITEM_BYTES[plan.compute]
