"""AdamW's state and temporaries (`torch/optim/adam.py`)."""

from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.weights import sizes
from peakward.records.case import Optimizer


def state(line: Timeline, plan: Plan) -> None:
    """Two moments of every parameter, in its type."""
    line.keep(*line.ops(2 * sizes(plan), category="optimizer_state"))


def update(line: Timeline, plan: Plan, implementation: Optimizer) -> None:
    """Over lists, the root of every second moment at once; tensor by tensor, the root and its
    quotient; in one kernel nothing."""
    if implementation == "adamw-foreach":
        line.ops(sizes(plan))
    elif implementation == "adamw-loop":
        line.ops((max(sizes(plan)),) * 2)
    else:
        line.ops(())
