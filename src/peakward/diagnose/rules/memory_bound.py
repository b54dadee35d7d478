"""Unfused elementwise work and reductions take the time

Sees: kernels of forward and backward that compute element by element, normalise, reduce or copy, and
that no compiler fused. Narrower findings (a written score matrix, casts, copies for layout) keep the
time that they explain; this finding is about the rest, if that is at least 15% of the time.
Costs: each kernel reads and writes its tensors through memory for one or two FLOPs an element, far
below the ridge of any GPU: arithmetic units stand still.
Example: RMSNorm, RoPE and SwiGLU written out in eager mode: a dozen kernels where two are enough.
Lever: compile; the fused kernels for attention, norms, RoPE, SwiGLU and the loss.
Wrong when: the work is one pass that could not be fused with anything.
"""

from peakward.diagnose.diagnosis_input import DiagnosisInput, Symptom, Verdict, abstain, number
from peakward.diagnose.kernels import MODEL_PHASES, chosen, parts, shown
from peakward.diagnose.rules import casts, layout_copies, naive_attention
from peakward.diagnose.time_parts import without, work_part
from peakward.levers.registry import OF_A_PART
from peakward.records.profile import KernelGroup

CODE = "BW001"
CATEGORIES = ("elementwise", "normalisation", "reduction", "softmax", "loss", "copy")
NARROWER = (naive_attention, layout_copies, casts)
LEAST_SHARE = 0.15
"""Fusion takes away only a part of this time. Of a smaller share it hardly takes the 3% that are worth
a finding."""


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the categories of kernels."""
    profile, time = given.profile, given.time
    if profile is None or time is None:
        return abstain(CODE, "a profile")
    if given.configuration is not None and given.configuration.compile != "none":
        return None
    held = parts(time, chosen(profile, _unfused))
    for rule in NARROWER:
        narrower = rule.judge(given)
        if isinstance(narrower, Symptom):
            held = without(held, narrower.parts)
    if time.share(held) < LEAST_SHARE:
        return None
    groups = chosen(
        profile, lambda each: _unfused(each) and held[work_part(each.phase, each.name)] > 0
    )
    n = sum(each.n for each in groups) / (given.steps or 1)
    return Symptom(
        cause="Chains of small formulas go through memory once for every operator.",
        evidence=(
            number(
                "such kernels a step" if given.steps else "such kernels",
                n,
                "count",
                "profile kernels[].n",
            ),
            *shown(profile, groups, given.steps),
        ),
        advice="fuse: compile the block, or use fused norms, attention and loss",
        levers=("compile", "sdpa", "flash", "flash-hopper", *OF_A_PART),
        parts=held,
    )


def _unfused(group: KernelGroup) -> bool:
    return (
        group.phase in MODEL_PHASES
        and group.category in CATEGORIES
        and not group.fused
        and not group.name.startswith("triton_")
    )
