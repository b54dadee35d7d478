"""Each new token recomputes all before it

Sees: a decode step without a cache; or in a trace without a backward pass, products of one weight whose
number of rows grows by the same step eight times or more.
Costs: generating n tokens takes n²/2 rows of every product; with a cache it takes n.
Example: `for _ in range(n): logits = model(tokens)` with the tokens growing.
Lever: kv-cache keeps keys and values; in code of your own the loop that generates does.
Wrong when: prompts of evenly growing lengths were processed one after another.
"""

import itertools
import re

import msgspec

from peakward.diagnose.diagnosis_input import (
    WORTH_SHARE,
    DiagnosisInput,
    Symptom,
    Verdict,
    abstain,
    number,
)
from peakward.diagnose.kernels import all_work, of_operators
from peakward.diagnose.time_parts import TimeParts
from peakward.levers import kv_cache
from peakward.records.case import ModelCase
from peakward.records.profile import OperatorRate

CODE = "GEN001"
PRODUCTS = ("aten::mm", "aten::addmm", "aten::linear")
CAUSE = "Keys and values of earlier tokens are not kept, so every pass computes them again."
ADVICE = "keep keys and values in a cache and pass the newest token alone"
LEAST_RUN = 8
"""The number of evenly growing lengths in a row that no batch of a data set has by chance."""


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the case, or by operators' shapes."""
    profile, time = given.profile, given.time
    if given.case is not None and kv_cache.recomputes(given.case):
        return _of_case(given.case, time)
    if profile is None or time is None:
        return abstain(CODE, "a profile")
    products = [each for each in profile.operators if each.name in PRODUCTS]
    if not products:
        return abstain(CODE, "shapes of matrix products")
    if any(each.phase == "backward" for each in profile.kernels):
        return None
    growing = _growing(products)
    rows = [_split(each)[0] for each in growing]
    if not rows:
        return None
    # Only the rows of the newest tokens had to be computed.
    wasted = [
        msgspec.structs.replace(each, kernel_ns=round(each.kernel_ns * (1 - _step(rows) / row)))
        for each, row in zip(growing, rows, strict=True)
    ]
    held = of_operators(time, profile, wasted)
    if time.share(held) < WORTH_SHARE:
        return None
    return Symptom(
        cause=CAUSE,
        evidence=(
            number(
                "lengths that follow one another",
                len(set(rows)),
                "count",
                "profile operators[].dims",
            ),
            number("rows of the first", min(rows), "count", "profile operators[].dims"),
            number("rows of the last", max(rows), "count", "profile operators[].dims"),
        ),
        advice=ADVICE,
        parts=held,
        is_all=False,
    )


def _of_case(case: ModelCase, time: TimeParts | None) -> Symptom:
    """A step that keeps nothing: all tokens go through the model, and only the newest had to."""
    n_tokens, n_new = kv_cache.tokens_computed(case), case.workload.batch_size
    wasted = 1 - n_new / n_tokens
    work = {} if time is None else all_work(time)
    return Symptom(
        cause=CAUSE,
        evidence=(
            number("tokens that a step computes", n_tokens, "count", "case workload"),
            number("tokens that it makes", n_new, "count", "case workload"),
        ),
        advice=ADVICE,
        levers=("kv-cache",),
        parts={name: seconds * wasted for name, seconds in work.items()},
        is_all=False,
        share=None if work else wasted,
    )


def _split(each: OperatorRate) -> tuple[int, str]:
    """The rows of the first matrix, and the shapes without them; 0 rows where there is no matrix."""
    matrices = re.findall(r"(\d+)×(\d+)", each.dims)
    if not matrices:
        return 0, ""
    (rows, inner), *others = matrices
    return int(rows), f"{each.name} {inner} {others[:1]}"


def _growing(products: list[OperatorRate]) -> list[OperatorRate]:
    by_weight: dict[str, list[tuple[int, OperatorRate]]] = {}
    for each in products:
        rows, rest = _split(each)
        by_weight.setdefault(rest, []).append((rows, each))
    found: list[OperatorRate] = []
    for group in by_weight.values():
        lengths = sorted({rows for rows, _ in group if rows})
        if _longest_run(lengths) >= LEAST_RUN:
            found += [each for rows, each in group if rows]
    return found


def _longest_run(lengths: list[int]) -> int:
    """The length of the longest run of numbers with equal steps between them."""
    steps = [after - before for before, after in itertools.pairwise(lengths)]
    longest = run = 1 if lengths else 0
    for at, step in enumerate(steps):
        run = run + 1 if at and step == steps[at - 1] else 2
        longest = max(longest, run)
    return longest


def _step(rows: list[int]) -> int:
    """The smallest step between two lengths."""
    lengths = sorted(set(rows))
    return min(after - before for before, after in itertools.pairwise(lengths))
