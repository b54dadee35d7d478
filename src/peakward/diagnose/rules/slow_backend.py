"""Attention runs on a slow backend

Sees: kernels of torch's memory-efficient attention with 16-bit operands, on a device that flash
attention supports. (The form by formulas has a softmax of its own, which ATTN001 sees.)
Costs: the memory-efficient kernel does not use the instructions of Ampere and later.
Example: an additive mask for SDPA, which rules out its flash kernel.
Lever: sdpa-cudnn, flash, flash-hopper; sdpa where a backend was forced.
Wrong when: the mask or bias that ruled out the other backends is needed.
"""

import re

from peakward.diagnose.diagnosis_input import WORTH_SHARE, DiagnosisInput, Symptom, Verdict, abstain
from peakward.diagnose.kernels import chosen, parts, shown

CODE = "ATTN002"
EFFICIENT = re.compile(
    r"fmha_cutlass[FB]_(?:b?f16)|AttentionKernel<(?:cutlass::)?(?:b?half|bfloat16)"
)
LEAST_CAPABILITY = (8, 0)
"""The least compute capability that flash attention supports."""


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the kernels' names."""
    gpu, time, device = given.gpu, given.time, given.device
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
        cause="torch chose, or was told to use, a backend of SDPA that is not the fastest on this device.",
        evidence=shown(gpu, groups, given.steps),
        advice="is_causal=True in place of a mask, 16-bit operands, or a backend by torch.nn.attention",
        levers=("sdpa", "sdpa-cudnn", "flash", "flash-hopper", "flash-decode"),
        parts=held,
    )
