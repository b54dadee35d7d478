"""The memory of a case at its peak, by purpose: recorded, or else predicted."""

from typing import NamedTuple

from peakward.diagnose.diagnosis_input import DiagnosisInput

SCARCE_SHARE = 0.5
"""Below this share of the available memory, saving some makes nothing new possible: twice the batch
already fits."""
PREDICTED = {
    "activations": ("activations_bytes", "logits_bytes"),
    "weight_casts": ("weight_casts_bytes",),
    "parameters": ("parameters_bytes",),
    "gradients": ("gradients_bytes",),
    "optimizer_state": ("optimizer_state_bytes",),
    "cache": ("cache_bytes",),
    "temporaries": ("temporaries_bytes",),
}
"""The fields of the predicted peak, by the purposes of a recorded one."""


class PeakUse(NamedTuple):
    """The bytes at the peak, by purpose."""

    peak_bytes: int
    by_purpose: dict[str, int]
    stored: str


def peak_use(given: DiagnosisInput) -> PeakUse | None:
    """The use of the recorded step where its purposes are known, else of the predicted step; None
    without either."""
    recorded = given.memory
    if recorded is not None and recorded.phases:
        top = max(recorded.phases, key=lambda each: each.allocated_bytes)
        if top.purposes:
            held = {each.name: each.n_bytes for each in top.purposes}
            return PeakUse(top.allocated_bytes, held, f"memory phases[{top.phase}].purposes")
    told = None if given.forecast is None else given.forecast.memory
    if told is None:
        return None
    split = {
        purpose: sum(getattr(told.peak, field) for field in fields)
        for purpose, fields in PREDICTED.items()
    }
    return PeakUse(told.peak_bytes, split, "forecast memory.peak")


def scores_bytes(given: DiagnosisInput) -> int | None:
    """The bytes of one layer's score matrix: batch × heads × length² in the type that attention
    computes in. None where attention keeps no score matrix."""
    case = given.case
    if case is None or case.configuration.attention not in ("naive", "sdpa-math"):
        return None
    work = case.workload
    n_queries = 1 if work.pass_ == "decode" else work.seq_len
    width = 4 if case.configuration.precision in ("fp32", "tf32") else 2
    return work.batch_size * case.model.n_heads * n_queries * work.seq_len * width
