"""Activations take most of the memory

Sees: what the peak of a training step is held for, recorded or predicted, where at least half of the
device's memory is taken.
Costs: the batch or the sequence cannot grow, though the weights would leave room.
Example: a decoder of 12 layers at 64 × 1,024 tokens without checkpointing.
Lever: checkpointing, which recomputes each block for a third more FLOPs; flash attention; fused SwiGLU and
norms, which keep less; a loss that keeps no logits.
Wrong when: memory is taken on purpose, by the largest batch that fits.
"""

from peakward.diagnose.memory_use import SCARCE_SHARE, peak_use
from peakward.diagnose.signals import Signals
from peakward.diagnose.symptom import Symptom, Verdict, abstain, number

CODE = "MEM002"
LEVERS = (
    *("checkpointing", "sdpa", "flash", "flash-hopper", "fused-swiglu", "fused-norm"),
    *("fused-loss", "chunked-loss", "recomputed-loss", "bf16-mixed"),
)
LEAST_SHARE = 0.5
"""Of the peak: from here on no other purpose takes more."""


def judge(signals: Signals) -> Verdict:
    """By the recorded memory of the case, else the predicted."""
    case, use, limit = signals.configured, peak_use(signals), signals.limit_bytes
    if case is None:
        return abstain(CODE, "a case")
    if use is None or limit is None:
        return abstain(CODE, "memory, recorded or predicted, and how much there is")
    held = use.by_purpose.get("activations", 0)
    kept = case.workload.trains and case.configuration.checkpointing == "none"
    if not kept or use.peak_bytes < SCARCE_SHARE * limit or held < LEAST_SHARE * use.peak_bytes:
        return None
    return Symptom(
        cause="The backward pass keeps every activation of the forward pass until it needs it.",
        evidence=(
            number("activations at the peak", held, "bytes", use.stored),
            number("peak", use.peak_bytes, "bytes", use.stored),
            number("there is", limit, "bytes", "case memory_limit_bytes, or the device's"),
        ),
        advice="checkpoint every block or every √L-th, or accumulate over smaller micro-batches",
        levers=LEVERS,
        held_back_bytes=held,
        share=min(held / limit, 1.0),
    )
