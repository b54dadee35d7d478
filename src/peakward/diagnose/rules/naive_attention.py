"""Attention writes its score matrix to memory

Sees: a softmax kernel of its own in forward or backward, other than the loss's; where Peakward's ranges
or the shapes of operators are recorded, the whole time of scores, softmax and values.
Costs: scores of batch × heads × length² are written and read some five times; a fused kernel keeps them
on the chip.
Example: `softmax(q @ k.T / sqrt(d)) @ v` written out.
Lever: sdpa, sdpa-cudnn, flash, flash-hopper; for decoding flash-decode.
Wrong when: the softmax belongs to a router or a classifier, and neither a case nor shapes tell it from
attention.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from peakward.diagnose.diagnosis_input import (
    WORTH_SHARE,
    DiagnosisInput,
    Symptom,
    Verdict,
    abstain,
    number,
)
from peakward.diagnose.kernels import (
    MODEL_PHASES,
    PRODUCT,
    chosen,
    of_operators,
    of_ranges,
    parts,
    shown,
)
from peakward.records.finding import FindingEvidence
from peakward.records.profile import KernelGroup, OperatorRate, RangeWork

CODE = "ATTN001"
LEVERS = ("sdpa", "sdpa-cudnn", "flash", "flash-hopper", "flash-decode")
PARTS = tuple(f"peakward::attention.{part}" for part in ("scores", "softmax", "values"))
OF_LOSS = re.compile(r"[Ll]og_?[Ss]oft_?[Mm]ax")
SOFTMAX = re.compile(r"^aten::_(?:safe_)?softmax$")
Dims = tuple[int, ...]


class Scores(NamedTuple):
    """Score matrices: `n` heads over all sequences, each with a score of every key for every query."""

    n: int
    n_queries: int
    n_keys: int


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the case where there is one, and by the softmax kernels. A trace with shapes tells
    attention's softmax from a router's or a classifier's, and shows what else works on the scores."""
    if given.configuration is not None and given.configuration.attention not in (
        "naive",
        "sdpa-math",
        "as-written",
    ):
        return None
    profile, time = given.profile, given.time
    if profile is None or time is None:
        return abstain(CODE, "a profile")
    softmax = chosen(profile, _is_softmax)
    fused = any(each.category == "attention" for each in profile.kernels)
    inside = [each for each in profile.ranges if each.name in PARTS]
    shaped = any(SOFTMAX.search(each.name) for each in profile.operators)
    on_scores = of_score_matrices(profile.operators)
    unknown = given.case is None and not on_scores and (shaped or fused)
    if not softmax or unknown:
        return None
    by_range = of_ranges(time, profile, inside)
    held = by_range or of_operators(time, profile, on_scores) or parts(time, softmax)
    if time.share(held) < WORTH_SHARE:
        return None
    return Symptom(
        cause="Scores and probabilities go through memory between three operators.",
        evidence=(*_of_ranges(inside, given.steps), *shown(profile, softmax, given.steps)),
        advice="torch.nn.functional.scaled_dot_product_attention, or any kernel without a score matrix",
        levers=LEVERS,
        parts=held,
        is_all=bool(by_range),
    )


def _of_ranges(inside: list[RangeWork], n_steps: int | None) -> tuple[FindingEvidence, ...]:
    if not inside:
        return ()
    name = "scores, softmax and values" + (", a step" if n_steps else "")
    seconds = sum(each.total_ns for each in inside) * 1e-9 / (n_steps or 1)
    return (number(name, seconds, "s", "profile ranges[peakward::attention.*].total_ns"),)


def _is_softmax(group: KernelGroup) -> bool:
    return (
        group.category == "softmax"
        and group.phase in MODEL_PHASES
        and not OF_LOSS.search(group.name)
        and not any(OF_LOSS.search(each) for each in group.fused)
    )


def of_score_matrices(operators: Sequence[OperatorRate]) -> tuple[OperatorRate, ...]:
    """The operators that work on attention's score matrices. A softmax is attention's if a batched
    product takes its result: the probabilities of a router or a classifier are not multiplied with a
    matrix for each head."""
    taken = {_scores(tensors[0]) for each in operators if (tensors := _product(each))}
    known = {
        found
        for each in operators
        if SOFTMAX.search(each.name) and (found := _scores(_tensors(each)[0])) in taken
    }
    return tuple(each for each in operators if _works_on(each, known))


def _works_on(each: OperatorRate, known: Iterable[Scores | None]) -> bool:
    tensors = _tensors(each)
    made = {_scores(dims) for dims in tensors}
    if product := _product(each):
        left, right = product
        made.add(_scores((*left[:-1], right[-1])))
    # The gradients of keys and values are products of transposed scores.
    made |= {Scores(at.n, at.n_keys, at.n_queries) for at in made if at is not None}
    return any(at in made for at in known)


def _product(each: OperatorRate) -> list[Dims] | None:
    """Both operands of a batched product, whatever its name; None for other operators."""
    if not PRODUCT.search(each.name):
        return None
    batched: list[Dims] = [dims for dims in _tensors(each) if len(dims) == 3]
    return batched[-2:] if len(batched) >= 2 else None


def _tensors(each: OperatorRate) -> list[Dims]:
    found = [tuple(map(int, re.findall(r"\d+", one))) for one in each.dims.split(", ")]
    return found or [()]


def _scores(dims: Dims) -> Scores | None:
    """The shape as scores; None for fewer than three dimensions, since scores have a batch of heads."""
    if len(dims) < 3:
        return None
    return Scores(math.prod(dims[:-2]), dims[-2], dims[-1])
