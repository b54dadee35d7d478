"""It does not fit into memory

Sees: a measured case that ran out of memory, or a forecast that needs more than the device has; the
purposes of the memory at the predicted peak; the size of a layer's score matrix where attention makes
one.
Costs: the case does not run at all.
Example: naive attention over 16,384 tokens: 1 GiB of fp32 scores for each head of a layer.
Lever: those that save memory: attention without a score matrix, checkpointing, bf16, a loss without all
logits, kernels for norms, RoPE and SwiGLU, moments in bf16 or 8 bits, quantised weights.
Wrong when: another program holds the device's memory.
"""

import math

from peakward.diagnose.diagnosis_input import DiagnosisInput, Symptom, Verdict, abstain, number
from peakward.diagnose.memory_use import PeakUse, peak_use, scores_bytes
from peakward.levers.registry import OF_A_PART
from peakward.records.finding import FindingEvidence

CODE = "MEM001"
ATTENTION = ("sdpa", "sdpa-cudnn", "flash", "flash-hopper", "flash-decode")
OTHERS = (
    *("checkpointing", "bf16", "bf16-mixed", "chunked-loss", "recomputed-loss"),
    *(*OF_A_PART, "bf16-states", "8bit-states", "int4-weights", "int8-weights"),
)
ADVICE = {
    "activations": "checkpoint blocks, or accumulate gradients over smaller batches",
    "weight_casts": "store the weights in the type that is computed in, so that autocast copies none",
    "parameters": "store the weights in fewer bits, or shard them",
    "gradients": "shard them over devices",
    "optimizer_state": "shard the optimiser, or keep its moments in fewer bits",
    "cache": "fewer key heads (GQA), a paged or int8 cache, or a sliding window",
    "temporaries": "fuse what makes them, or a smaller batch",
}


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the measurement's status, else by the forecast."""
    told, made = given.forecast, given.measurement
    failed = made is not None and made.status == "oom"
    if made is None and (told is None or told.fits is None):
        return abstain(CODE, "a measurement")
    if not failed and (made is not None or told is None or told.fits is not False):
        return None
    use, scores = peak_use(given), scores_bytes(given)
    most = None if use is None else max(use.by_purpose, key=lambda name: use.by_purpose[name])
    held = (
        "the purposes of its memory are not known"
        if most is None
        else f"most of it is for {most.replace('_', ' ')}"
    )
    needed = None if told is None else told.needed_bytes
    limit = given.limit_bytes
    logits = _logits_bytes(given)
    return Symptom(
        cause=f"The step needs more memory than is available; {held}.",
        evidence=(*_evidence(given, most), *_scores(scores), *_logits(logits)),
        advice=_advice(use, most, scores, logits),
        levers=(*ATTENTION, *OTHERS),
        held_back_bytes=None if needed is None or limit is None else max(needed - limit, 0),
        share=1.0,
    )


def _advice(use: PeakUse | None, most: str | None, scores: int | None, logits: int | None) -> str:
    """The advice about a tensor that takes half of the peak by itself, else about the largest purpose."""
    peak_bytes = math.inf if use is None else use.peak_bytes
    if scores is not None and 2 * scores > peak_bytes:
        return "an attention that keeps no score matrix"
    if logits is not None and 2 * logits > peak_bytes:
        return "a loss that has the output layer in it and never all logits"
    return ADVICE.get(most or "", "a smaller batch or a shorter sequence")


def _logits_bytes(given: DiagnosisInput) -> int | None:
    """The bytes of the logits at the predicted peak, with their gradient and copies; None without a
    prediction."""
    told = None if given.forecast is None else given.forecast.memory
    return None if told is None else told.peak.logits_bytes


def _logits(n_bytes: int | None) -> tuple[FindingEvidence, ...]:
    if not n_bytes:
        return ()
    stored = "forecast memory.peak.logits_bytes"
    return (number("logits and their gradient, predicted", n_bytes, "bytes", stored),)


def _evidence(given: DiagnosisInput, most: str | None) -> tuple[FindingEvidence, ...]:
    found = []
    told, use, limit = given.forecast, peak_use(given), given.limit_bytes
    if told is not None and told.needed_bytes is not None:
        found.append(
            number("needed, predicted", told.needed_bytes, "bytes", "forecast needed_bytes")
        )
    if limit is not None:
        found.append(
            number("available", limit, "bytes", "case memory_limit_bytes, or the device's")
        )
    if use is not None and most is not None:
        name = f"held for {most.replace('_', ' ')} at the peak"
        found.append(number(name, use.by_purpose[most], "bytes", use.stored))
    return tuple(found)


def _scores(n_bytes: int | None) -> tuple[FindingEvidence, ...]:
    if n_bytes is None:
        return ()
    stored = "case batch_size × n_heads × seq_len²"
    return (number("score matrix of one layer", n_bytes, "bytes", stored),)
