"""Attention writes its score matrix to memory

Sees: softmax as a kernel of its own in forward or backward (the loss's logarithm apart), and with
Peakward's ranges, or the shapes of operators, the whole time of scores, softmax and values.
Costs: scores of batch × heads × length² are written and read some five times; a fused kernel keeps them
on the chip.
Example: `softmax(q @ k.T / sqrt(d)) @ v` written out.
Lever: sdpa, sdpa-cudnn, flash, flash-hopper; of decode flash-decode.
Wrong when: the softmax is a router's or a classifier's, where neither a case nor shapes say what
attention is.
"""

import re

from peakward.diagnose.kernels import MODEL_PHASES, chosen, of_operators, of_ranges, parts, shown
from peakward.diagnose.score_matrices import SOFTMAX, of_score_matrices
from peakward.diagnose.signals import Signals
from peakward.diagnose.symptom import WORTH_SHARE, Symptom, Verdict, abstain, number
from peakward.records.finding import Evidence
from peakward.records.profile import Group, RangeWork

CODE = "ATTN001"
LEVERS = ("sdpa", "sdpa-cudnn", "flash", "flash-hopper", "flash-decode")
PARTS = tuple(f"peakward::attention.{part}" for part in ("scores", "softmax", "values"))
OF_LOSS = re.compile(r"[Ll]og_?[Ss]oft_?[Mm]ax")


def judge(signals: Signals) -> Verdict:
    """By the case where there is one, and the softmax kernels; a trace with shapes tells a router's or a
    classifier's from attention's, and what else works on the scores."""
    if signals.configuration is not None and signals.configuration.attention not in (
        "naive",
        "sdpa-math",
        "as-written",
    ):
        return None
    profile, time = signals.profile, signals.time
    if profile is None or time is None:
        return abstain(CODE, "a profile")
    softmax = chosen(profile, _is_softmax)
    fused = any(each.category == "attention" for each in profile.kernels)
    inside = [each for each in profile.ranges if each.name in PARTS]
    shaped = any(SOFTMAX.search(each.name) for each in profile.operators)
    on_scores = of_score_matrices(profile.operators)
    unknown = signals.case is None and not on_scores and (shaped or fused)
    if not softmax or unknown:
        return None
    by_range = of_ranges(time, profile, inside)
    held = by_range or of_operators(time, profile, on_scores) or parts(time, softmax)
    if time.share(held) < WORTH_SHARE:
        return None
    return Symptom(
        cause="Scores and probabilities go through memory between three operators.",
        evidence=(*_of_ranges(inside, signals.steps), *shown(profile, softmax, signals.steps)),
        advice="torch.nn.functional.scaled_dot_product_attention, or any kernel without a score matrix",
        levers=LEVERS,
        parts=held,
        is_all=bool(by_range),
    )


def _of_ranges(inside: list[RangeWork], n_steps: int | None) -> tuple[Evidence, ...]:
    if not inside:
        return ()
    name = "scores, softmax and values" + (", a step" if n_steps else "")
    seconds = sum(each.total_ns for each in inside) * 1e-9 / (n_steps or 1)
    return (number(name, seconds, "s", "profile ranges[peakward::attention.*].total_ns"),)


def _is_softmax(group: Group) -> bool:
    return (
        group.category == "softmax"
        and group.phase in MODEL_PHASES
        and not OF_LOSS.search(group.name)
        and not any(OF_LOSS.search(each) for each in group.fused)
    )
