"""Unfused elementwise work and reductions take the time

Sees: kernels of forward and backward that do arithmetic element by element, normalise, reduce or copy,
and that no compiler fused. What narrower findings explain (a written score matrix, casts, copies for
layout) is theirs: this one is of the rest, its time, its share and its bound too, from 15% of the time on.
Costs: each reads and writes its tensors through memory for a FLOP or two an element, far below the
ridge of any GPU: arithmetic units stand still.
Example: RMSNorm, RoPE and SwiGLU written out in eager mode: a dozen kernels where two would do.
Lever: compile; the fused kernels for attention, norms, RoPE, SwiGLU and the loss.
Wrong when: the work is one pass that nothing could be fused into.
"""

from peakward.diagnose.kernels import MODEL_PHASES, chosen, parts, shown
from peakward.diagnose.rules import casts, layout_copies, naive_attention
from peakward.diagnose.signals import Signals
from peakward.diagnose.symptom import Symptom, Verdict, abstain, number
from peakward.diagnose.time_parts import without, work_part
from peakward.records.profile import Group

CODE = "BW001"
CATEGORIES = ("elementwise", "normalisation", "reduction", "softmax", "loss", "copy")
FUSED = ("fused-norm", "fused-rope", "fused-swiglu", "fused-loss")
NARROWER = (naive_attention, layout_copies, casts)
LEAST_SHARE = 0.15
"""Fusion takes away only a part of it: of less, hardly the 3% that a finding is worth."""


def judge(signals: Signals) -> Verdict:
    """By the categories of kernels."""
    profile, time = signals.profile, signals.time
    if profile is None or time is None:
        return abstain(CODE, "a profile")
    if signals.configuration is not None and signals.configuration.compile != "none":
        return None
    held = parts(time, chosen(profile, _unfused))
    for rule in NARROWER:
        narrower = rule.judge(signals)
        if isinstance(narrower, Symptom):
            held = without(held, narrower.parts)
    if time.share(held) < LEAST_SHARE:
        return None
    groups = chosen(
        profile, lambda each: _unfused(each) and held[work_part(each.phase, each.name)] > 0
    )
    n = sum(each.n for each in groups) / (signals.steps or 1)
    return Symptom(
        cause="Chains of small formulas go through memory once for every operator.",
        evidence=(
            number(
                "such kernels a step" if signals.steps else "such kernels",
                n,
                "count",
                "profile kernels[].n",
            ),
            *shown(profile, groups, signals.steps),
        ),
        advice="fuse: compile the block, or use fused norms, attention and loss",
        levers=("compile", "sdpa", "flash", "flash-hopper", *FUSED),
        parts=held,
    )


def _unfused(group: Group) -> bool:
    return (
        group.phase in MODEL_PHASES
        and group.category in CATEGORIES
        and not group.fused
        and not group.name.startswith("triton_")
    )
