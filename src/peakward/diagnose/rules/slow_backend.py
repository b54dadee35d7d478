"""Attention runs on a slow backend

Sees: kernels of torch's memory-efficient attention with 16-bit operands, on a device that flash attention
is written for. (The form by formulas has a softmax of its own, which ATTN001 sees.)
Costs: the efficient kernel does not use what Ampere and later offer.
Example: an additive mask given to SDPA, which rules its flash kernel out.
Lever: sdpa-cudnn, flash, flash-hopper; sdpa where a backend was forced.
Wrong when: the mask or bias that ruled the others out is needed.
"""

import re

from peakward.diagnose.kernels import chosen, parts, shown
from peakward.diagnose.signals import Signals
from peakward.diagnose.symptom import WORTH_SHARE, Symptom, Verdict, abstain

CODE = "ATTN002"
EFFICIENT = re.compile(
    r"fmha_cutlass[FB]_(?:b?f16)|AttentionKernel<(?:cutlass::)?(?:b?half|bfloat16)"
)
LEAST_CAPABILITY = (8, 0)
"""What flash attention is written for."""


def judge(signals: Signals) -> Verdict:
    """By the kernels' names."""
    gpu, time, device = signals.gpu, signals.time, signals.device
    if gpu is None or time is None:
        return abstain(CODE, "a profile of GPU work")
    capability = None if device is None else device.compute_capability
    if capability is None:
        return abstain(CODE, "the device's compute capability")
    if capability.value < LEAST_CAPABILITY:
        return None
    groups = chosen(gpu, lambda each: bool(EFFICIENT.search(each.name)))
    held = parts(time, groups)
    if time.share(held) < WORTH_SHARE:
        return None
    return Symptom(
        cause="torch chose, or was told, a backend of SDPA that this device has a faster one for.",
        evidence=shown(gpu, groups, signals.steps),
        advice="is_causal=True in place of a mask, 16-bit operands, or a backend by torch.nn.attention",
        levers=("sdpa", "sdpa-cudnn", "flash", "flash-hopper", "flash-decode"),
        parts=held,
    )
