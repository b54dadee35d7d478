"""Activations take most of the memory

Sees: the purposes of the memory at the peak of a training step, recorded or predicted, where at least
half of the device's memory is taken.
Costs: the batch or the sequence cannot grow, though the weights would leave room.
Example: a decoder of 12 layers at 64 × 1,024 tokens without checkpointing.
Lever: checkpointing recomputes each block for a third more FLOPs; flash attention and the
kernels for norms, RoPE and SwiGLU keep less; a chunked or fused loss keeps no logits.
Wrong when: the memory is taken on purpose, by the largest batch that fits.
"""

from peakward.diagnose.diagnosis_input import DiagnosisInput, Symptom, Verdict, abstain, number
from peakward.diagnose.memory_use import SCARCE_SHARE, peak_use
from peakward.levers.registry import OF_A_PART

CODE = "MEM002"
LEVERS = (
    *("checkpointing", "sdpa", "flash", "flash-hopper", *OF_A_PART),
    *("chunked-loss", "recomputed-loss", "bf16-mixed"),
)
LEAST_SHARE = 0.5
"""The smallest share of the peak at which no other purpose takes more."""


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the recorded memory of the case, else by the predicted memory."""
    case, use, limit = given.configured, peak_use(given), given.limit_bytes
    if case is None:
        return abstain(CODE, "a case")
    if use is None or limit is None:
        return abstain(CODE, "memory, recorded or predicted, and the device's size")
    held = use.by_purpose.get("activations", 0)
    kept = case.workload.trains and case.configuration.checkpointing == "none"
    if not kept or use.peak_bytes < SCARCE_SHARE * limit or held < LEAST_SHARE * use.peak_bytes:
        return None
    return Symptom(
        cause="The backward pass keeps every activation of the forward pass until it needs it.",
        evidence=(
            number("activations at the peak", held, "bytes", use.stored),
            number("peak", use.peak_bytes, "bytes", use.stored),
            number("available", limit, "bytes", "case memory_limit_bytes, or the device's"),
        ),
        advice="checkpoint every block or every √L-th, or accumulate over smaller micro-batches",
        levers=LEVERS,
        held_back_bytes=held,
        share=min(held / limit, 1.0),
    )
