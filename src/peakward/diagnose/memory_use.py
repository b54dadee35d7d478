"""What is known of a case's memory, recorded, measured or predicted."""

from typing import NamedTuple

from peakward.diagnose.signals import Signals

SCARCE_SHARE = 0.5
"""Of the memory there is, below which saving some makes nothing possible that is not already: twice
the batch would still fit."""
PREDICTED = {
    "activations": ("activations_bytes", "logits_bytes"),
    "weight_casts": ("weight_casts_bytes",),
    "parameters": ("parameters_bytes",),
    "gradients": ("gradients_bytes",),
    "optimizer_state": ("optimizer_state_bytes",),
    "cache": ("cache_bytes",),
    "temporaries": ("temporaries_bytes",),
}
"""Fields of the predicted peak, by the purposes of a recorded one."""


class PeakUse(NamedTuple):
    """Bytes at the peak by purpose."""

    peak_bytes: int
    by_purpose: dict[str, int]
    stored: str


def peak_use(signals: Signals) -> PeakUse | None:
    """Of the recorded step where there is one with its purposes, else of the predicted."""
    recorded = signals.memory
    if recorded is not None and recorded.phases:
        top = max(recorded.phases, key=lambda each: each.allocated_bytes)
        if top.purposes:
            held = {each.name: each.n_bytes for each in top.purposes}
            return PeakUse(top.allocated_bytes, held, f"memory phases[{top.phase}].purposes")
    told = None if signals.forecast is None else signals.forecast.memory
    if told is None:
        return None
    split = {
        purpose: sum(getattr(told.peak, field) for field in fields)
        for purpose, fields in PREDICTED.items()
    }
    return PeakUse(told.peak_bytes, split, "forecast memory.peak")


def scores_bytes(signals: Signals) -> int | None:
    """One layer's score matrix, batch × heads × length² in the type that attention computes in; None
    where attention keeps none."""
    case = signals.case
    if case is None or case.configuration.attention not in ("naive", "sdpa-math"):
        return None
    work = case.workload
    n_queries = 1 if work.pass_ == "decode" else work.seq_len
    width = 4 if case.configuration.precision in ("fp32", "tf32") else 2
    return work.batch_size * case.model.n_heads * n_queries * work.seq_len * width
