"""AdamW's state and temporaries (`torch/optim/adam.py`)."""

from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.weights import weights
from peakward.records.case import Optimizer


def state(line: Timeline, plan: Plan) -> None:
    """Two moments of every parameter, in its type."""
    for _ in range(2):
        for weight in weights(plan):
            n_bytes = weight.tensor.n_bytes
            for _ in range(weight.n):
                line.keep(line.op(n_bytes, category="optimizer_state"))


def update(line: Timeline, plan: Plan, implementation: Optimizer) -> None:
    """Over lists, the root of every second moment at once; tensor by tensor, the root and its
    quotient; in one kernel nothing."""
    sizes: list[int] = []
    for weight in weights(plan):
        sizes += [weight.tensor.n_bytes] * weight.n
    if implementation == "adamw-foreach":
        line.ops(sizes)
    elif implementation == "adamw-loop":
        line.ops((max(sizes),) * 2)
    else:
        line.ops(())
