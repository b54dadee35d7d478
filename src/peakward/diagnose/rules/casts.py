"""Casts between types take a share of the step

Sees: copy kernels that change the type of their elements.
Costs: each cast moves a tensor through memory to change its width; autocast casts every weight again in
each step.
Example: bf16 autocast over fp32 weights in a small model: two casts for each product.
Lever: compile fuses casts with their neighbours; bf16 keeps parameters in the narrow type.
Wrong when: the fp32 master copy keeps training stable; bf16 gives it up.
"""

import re

from peakward.diagnose.diagnosis_input import WORTH_SHARE, DiagnosisInput, Symptom, Verdict, abstain
from peakward.diagnose.kernels import MODEL_PHASES, chosen, parts, shown

CODE = "PREC003"
CASTS = re.compile(
    r"b?float16_copy_kernel|float8_copy_kernel|unrolled_elementwise_kernel<.*direct_copy_kernel"
)
"""torch's kernel names: casts to 16 and 8 bits, and every other cast, which only the unrolled kernel
does."""


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the kernels' names. The host's operators show only a copy, whatever its purpose."""
    gpu, time = given.gpu, given.time
    if gpu is None or time is None:
        return abstain(CODE, "a profile of GPU work")
    groups = chosen(gpu, lambda each: each.phase in MODEL_PHASES and bool(CASTS.search(each.name)))
    held = parts(time, groups)
    if time.share(held) < WORTH_SHARE:
        return None
    return Symptom(
        cause="Tensors are rewritten in another type before and after the products.",
        evidence=shown(gpu, groups, given.steps),
        advice="compile the block, or keep weights in the type that products are taken in",
        levers=("compile", "bf16"),
        parts=held,
    )
