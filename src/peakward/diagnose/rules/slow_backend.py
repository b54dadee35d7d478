"""Attention runs on a slow backend

Sees: kernels of torch's memory-efficient attention with 16-bit operands, or operators of its mathematical
form, on a device that flash attention is written for.
Costs: the efficient kernel does not use what Ampere and later offer; the form by formulas keeps scores.
Example: an additive mask given to SDPA, which rules its flash kernel out.
Lever: sdpa-cudnn, flash, flash-hopper; sdpa where a backend was forced.
Wrong when: the mask or bias that ruled the others out is needed.
"""

import re

from peakward.diagnose.kernels import all_work, chosen, parts, shown
from peakward.diagnose.signals import Signals
from peakward.diagnose.symptom import WORTH_SHARE, Symptom, Verdict, abstain, number
from peakward.records.profile import Profile

CODE = "ATTN002"
EFFICIENT = re.compile(
    r"fmha_cutlass[FB]_(?:b?f16)|AttentionKernel<(?:cutlass::)?(?:b?half|bfloat16)"
)
BY_FORMULAS = "aten::_scaled_dot_product_attention_math"
LEAST_CAPABILITY = (8, 0)
"""What flash attention is written for."""


def judge(signals: Signals) -> Verdict:
    """By kernels and operators' names."""
    gpu, time, device = signals.gpu, signals.time, signals.device
    if gpu is None or time is None:
        return abstain(CODE, "a profile of GPU work")
    capability = None if device is None else device.compute_capability
    if capability is None:
        return abstain(CODE, "the device's compute capability")
    if capability.value < LEAST_CAPABILITY:
        return None
    groups = chosen(gpu, lambda each: bool(EFFICIENT.search(each.name)))
    share = _by_formulas(gpu)
    held = (
        parts(time, groups)
        if groups
        else {name: seconds * share for name, seconds in all_work(time).items()}
    )
    if time.share(held) < WORTH_SHARE:
        return None
    evidence = shown(groups, signals.steps) or (
        number(BY_FORMULAS, share, "share", f"profile operators[{BY_FORMULAS}].kernel_ns"),
    )
    return Symptom(
        cause="torch chose, or was told, a backend of SDPA that this device has a faster one for.",
        evidence=evidence,
        advice="is_causal=True in place of a mask, 16-bit operands, or a backend by torch.nn.attention",
        levers=("sdpa", "sdpa-cudnn", "flash", "flash-hopper", "flash-decode"),
        parts=held,
    )


def _by_formulas(gpu: Profile) -> float:
    """Of the work, what the mathematical form takes."""
    ns = sum(each.kernel_ns for each in gpu.operators if each.name == BY_FORMULAS)
    return min(ns / max(sum(each.total_ns for each in gpu.kernels), 1), 1.0)
