"""Tensors are copied only to change their layout in memory

Sees: torch's copy kernel for strided operands with equal types, and its concatenation kernel, in
forward and backward.
Costs: a copy moves every byte twice and computes nothing; a strided copy reaches only a part of the
bandwidth.
Example: `x.transpose(1, 2).contiguous()` before every product; separate Q, K and V that are joined.
Lever: sdpa and flash take strided heads; compile fuses the copy with its neighbours.
Wrong when: the copy makes many later products faster than it costs.
"""

import re

from peakward.diagnose.diagnosis_input import WORTH_SHARE, DiagnosisInput, Symptom, Verdict, abstain
from peakward.diagnose.kernels import MODEL_PHASES, chosen, parts, shown

CODE = "BW002"
STRIDED = re.compile(r"^elementwise_kernel<.*direct_copy_kernel|^CatArrayBatchedCopy")
"""Kernels named `vectorized_…` copy contiguous tensors and `unrolled_…` cast: neither changes a layout."""


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the kernels' names. The host's operators do not say how their operands lie in memory."""
    gpu, time = given.gpu, given.time
    if gpu is None or time is None:
        return abstain(CODE, "a profile of GPU work")
    groups = chosen(
        gpu, lambda each: each.phase in MODEL_PHASES and bool(STRIDED.search(each.name))
    )
    held = parts(time, groups)
    if time.share(held) < WORTH_SHARE:
        return None
    return Symptom(
        cause="Results of transposes, slices or splits are made contiguous by a copy of their own.",
        evidence=shown(gpu, groups, given.steps),
        advice="pack Q, K and V into one projection, order dimensions as the next product wants them, "
        "and leave out .contiguous()",
        levers=("compile", "sdpa", "flash", "flash-hopper"),
        parts=held,
    )
