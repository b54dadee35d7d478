"""What a block's one feed-forward network holds."""

from typing import NamedTuple

from peakward.prediction.memory import activation, linear
from peakward.prediction.memory.activation import SavedActivation
from peakward.prediction.memory.linear import SavedLinear
from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.layers import layers
from peakward.prediction.operators.plan import Plan


class SavedFeedForward(NamedTuple):
    """What autograd keeps of both products and between them."""

    up: SavedLinear
    activation: SavedActivation
    down: SavedLinear


def forward(line: Timeline, plan: Plan, x: int) -> tuple[SavedFeedForward, int]:
    """The normed residual stream → what is added to it."""
    up, activated, product = _until_last_product(line, plan, x)
    down, y = linear.forward(line, layers(plan).down, product, plan.tokens, plan.compute)
    line.use(x, activated.widened)
    return SavedFeedForward(up, activated, down), y


def until_saved(line: Timeline, plan: Plan, x: int) -> SavedFeedForward:
    """As far as torch recomputes it: to the casts for the last product."""
    up, activated, product = _until_last_product(line, plan, x)
    down = linear.casts(line, layers(plan).down, product, plan.tokens, plan.compute)
    line.use(x, activated.widened)
    return SavedFeedForward(up, activated, down)


def backward(line: Timeline, plan: Plan, saved: SavedFeedForward, gradient: int) -> int:
    """Gradient of the result → of the normed residual stream."""
    rows = plan.tokens
    product = linear.backward(line, saved.down, gradient, rows, plan.compute)
    widened = activation.backward(line, plan, saved.activation, product, rows)
    return linear.backward(line, saved.up, widened, rows, plan.stored)


def _until_last_product(
    line: Timeline, plan: Plan, x: int
) -> tuple[SavedLinear, SavedActivation, int]:
    up, widened = linear.forward(line, layers(plan).up, x, plan.tokens, plan.stored)
    return up, *activation.forward(line, plan, widened, plan.tokens)
