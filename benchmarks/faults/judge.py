"""What the rules say of each program, and how often they are right."""

from collections.abc import Iterable, Sequence

from faults.records import Planted, Ran, Recall, Verdict
from peakward.diagnose.examine import examine

COUNTS = 0.1
"""Of the step a fault must cost so much to count: two rules look for no less (HOST002, HOST003)."""
MOST = 0.5


def verdicts(ran: Sequence[Ran]) -> tuple[Verdict, ...]:
    """Of every program that ran."""
    without = {each.program: each.seen.step_s for each in ran if each.planted and not each.strength}
    return tuple(_verdict(each, without.get(each.program)) for each in ran if each.failed is None)


def _verdict(ran: Ran, without_s: float | None) -> Verdict:
    found = examine(ran.seen.diagnosis_input(ran.label))
    codes = tuple(each.code for each in found.findings)
    with_s = ran.seen.step_s if ran.strength else None
    return Verdict(
        program=ran.program,
        label=ran.label,
        planted=ran.planted,
        strength=ran.strength,
        cost_share=1 - without_s / with_s if with_s and without_s else None,
        found=codes,
        abstentions=found.abstentions,
        rank=codes.index(ran.planted) + 1 if ran.strength and ran.planted in codes else None,
    )


def counts(verdict: Verdict) -> bool:
    """Whether the fault is there, and costs enough that its rule should find it."""
    faint = verdict.cost_share is not None and verdict.cost_share < COUNTS
    return verdict.strength > 0 and not faint


def recall(every: Iterable[Verdict]) -> tuple[Recall, ...]:
    """By rule, in the order of their codes."""
    by_code: dict[str, list[Verdict]] = {}
    for each in every:
        if each.planted is not None and each.strength:
            by_code.setdefault(each.planted, []).append(each)
    return tuple(_recall(code, by_code[code]) for code in sorted(by_code))


def _recall(code: str, planted: Sequence[Verdict]) -> Recall:
    judged = [each for each in planted if not each.missing]
    plain = [each for each in judged if counts(each)]
    faint = [each for each in judged if not counts(each)]
    return Recall(
        code=code,
        n=len(plain),
        n_found=sum(each.rank is not None for each in plain),
        n_first=sum(each.rank == 1 for each in plain),
        n_faint=len(faint),
        n_faint_found=sum(each.rank is not None for each in faint),
        n_abstained=len(planted) - len(judged),
    )


def alarms(every: Iterable[Verdict]) -> dict[str, tuple[str, ...]]:
    """Findings in programs without a fault, by program."""
    return {each.label: each.alarms for each in every if each.alarms}


def largest_is_first(verdict: Verdict) -> bool:
    """Whether a fault that costs more than half of the step, so that nothing costs more, is first, where
    its rule could judge."""
    is_largest = verdict.cost_share is not None and verdict.cost_share > MOST
    return verdict.rank == 1 or bool(verdict.missing) or not is_largest


def judged(found: Planted) -> Planted:
    """The result with what the rules say of it now."""
    every = verdicts(found.ran)
    return Planted(
        device=found.device,
        environment=found.environment,
        command=found.command,
        ran=found.ran,
        skipped=found.skipped,
        verdicts=every,
        recall=recall(every),
    )
