"""Attention writes its score matrix to memory

Sees: softmax as a kernel of its own in forward or backward (the loss's logarithm apart), and with
Peakward's ranges the whole time of scores, softmax and values.
Costs: scores of batch × heads × length² are written and read some five times; a fused kernel keeps them
on the chip.
Example: `softmax(q @ k.T / sqrt(d)) @ v` written out.
Lever: sdpa, sdpa-cudnn, flash, flash-hopper; of decode flash-decode.
Wrong when: the softmax is a router's or a classifier's, where no case says what attention is.
"""

import re

from peakward.diagnose.kernels import MODEL_PHASES, chosen, of_ranges, parts, shown
from peakward.diagnose.signals import Signals
from peakward.diagnose.symptom import WORTH_SHARE, Symptom, Verdict, abstain, number
from peakward.records.profile import Group

CODE = "ATTN001"
LEVERS = ("sdpa", "sdpa-cudnn", "flash", "flash-hopper", "flash-decode")
PARTS = tuple(f"peakward::attention.{part}" for part in ("scores", "softmax", "values"))
OF_LOSS = re.compile(r"[Ll]og_?[Ss]oft_?[Mm]ax")


def judge(signals: Signals) -> Verdict:
    """By the case where there is one, and the softmax kernels."""
    if signals.configuration is not None and signals.configuration.attention not in (
        "naive",
        "sdpa-math",
    ):
        return None
    profile, time = signals.profile, signals.time
    if profile is None or time is None:
        return abstain(CODE, "a profile")
    softmax = chosen(profile, _is_softmax)
    fused = any(each.category == "attention" for each in profile.kernels)
    if not softmax or (signals.case is None and fused):
        return None
    inside = [each for each in profile.ranges if each.name in PARTS]
    held = of_ranges(time, profile, inside) or parts(time, softmax)
    if time.share(held) < WORTH_SHARE:
        return None
    whole_ns = sum(each.total_ns for each in inside)
    of_parts = (
        ()
        if not inside
        else (
            number(
                "scores, softmax and values, a step"
                if signals.steps
                else "scores, softmax and values",
                whole_ns * 1e-9 / (signals.steps or 1),
                "s",
                "profile ranges[peakward::attention.*].total_ns",
            ),
        )
    )
    return Symptom(
        cause="Scores and probabilities go through memory between three operators.",
        evidence=(*of_parts, *shown(softmax, signals.steps)),
        advice="torch.nn.functional.scaled_dot_product_attention, or any kernel without a score matrix",
        levers=LEVERS,
        parts=held,
        is_all=bool(inside),
    )


def _is_softmax(group: Group) -> bool:
    return (
        group.category == "softmax"
        and group.phase in MODEL_PHASES
        and not OF_LOSS.search(group.name)
        and not any(OF_LOSS.search(each) for each in group.fused)
    )
