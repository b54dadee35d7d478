"""The part of the forward pass that runs again in the backward one (`lab/levers/compilation.py`).

Chen et al. 2016, "Training deep nets with sublinear memory cost".
"""

import math

from peakward.prediction.operators import block
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import Tape
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.case import Checkpointing

KEPT_BY_SELECTIVE = frozenset(
    {
        "mm",
        "addmm",
        "bmm",
        "_scaled_mm",
        "_grouped_mm",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "peakward.flash_attention",
    }
)
"""Whose results are kept, so that they do not run again (`SAVED_BY_SELECTIVE` of the lever)."""


def again(tape: Tape, plan: Plan, checkpointing: Checkpointing) -> None:
    """Every block but the last of a run whole, and the last as far as torch needs it."""
    runs = n_runs(plan.shape.n_layers, checkpointing)
    kept = KEPT_BY_SELECTIVE if checkpointing == "selective" else frozenset()
    on, x = Writer(tape), Value(plan.hidden)
    if runs:
        with tape.without(kept):
            for _ in on.times(plan.shape.n_layers - runs):
                block.forward(on, plan, x)
            for _ in on.times(runs):
                block.forward_until_saved(on, plan, x)


def n_runs(n_layers: int, checkpointing: Checkpointing) -> int:
    """Runs of blocks that are recomputed as one."""
    return 0 if checkpointing == "none" else len(runs(n_layers, checkpointing))


def runs(n_layers: int, checkpointing: Checkpointing) -> list[int]:
    """How many blocks each run has, recomputed or not."""
    length = math.ceil(math.sqrt(n_layers)) if checkpointing == "sqrt" else 1
    return [min(length, n_layers - start) for start in range(0, n_layers, length)]
