"""Composes levers greedily by screening them, one on top of another.

Screening judges a lever by one short measurement of each arm: enough to drop it, not to keep it.
"""

from collections.abc import Collection, Mapping, Sequence
from math import inf, log, prod
from typing import NamedTuple

from peakward.diagnose.rules import naive_attention
from peakward.levers.axis import Axis, Value
from peakward.levers.catalogue import AXES, pull
from peakward.records.case import LeverCase
from peakward.records.errors import OutOfTimeError
from peakward.records.finding import Diagnosis
from peakward.records.lever import Lever, Trial
from peakward.stats.pairs import WORTH_HAVING
from peakward.tune.bench import Bench
from peakward.tune.costs import LEAST_PROCESSES, N_PROCESSES
from peakward.tune.ledger import Undone
from peakward.tune.lever_stack import LeverStack, together
from peakward.tune.trials import promising, refused, rescues

HOPEFUL = 1.0
"""A lever that is expected to leave less than this share of what is sought is tried before the proof."""
UNKNOWN = 0.98
"""The share that a lever is expected to leave of which nothing is known."""
SURE = 0.97
"""The largest share that a lever of a composition that is tried whole may be expected to leave."""
DISAPPOINTING = 1.1
"""A composition that leaves more than this times what was expected is taken apart. nanoGPT's model (H200)
leaves 0.102 of its fp32 step in bf16, compiled, with fused AdamW, where 0.095 is expected."""
FUSED_BY_COMPILING = ("norm", "rope", "swiglu", "loss")
"""Settings whose kernels torch.compile makes of its own: on compiled steps of `2.7B` (H200) levers of these
left 0.985 to 0.997."""


class Whole(NamedTuple):
    """A composition, and the share of its base's step that it is expected to leave."""

    stack: LeverStack
    expected: float


class Search:
    """Finds a lever stack by screening. It keeps nothing; `proof.Proof` does that.

    Args:
        bounds: what the findings about the base leave of its time, by the levers that answer them.
        unwritten: levers that bring what a finding saw written out in the base.
    """

    def __init__(
        self,
        bench: Bench,
        *,
        seeks_memory: bool = False,
        bounds: Mapping[str, float] | None = None,
        unwritten: Collection[str] = (),
    ) -> None:
        self._bench, self._ledger, self._seeks_memory = bench, bench.ledger, seeks_memory
        self._bounds, self._unwritten = bounds or {}, unwritten
        self._n_processes = N_PROCESSES
        """The processes of the proof that a screening leaves the time for."""
        self._wrong: set[str] = set()
        """Levers whose numbers do not hold."""
        self._tried: set[tuple[str, LeverCase]] = set()
        """Levers, each with a composition on which its turn has come."""
        self._ratios: dict[str, float] = {}
        """The ratio of what is sought in each lever's latest screening, candidate over base."""
        self._errors: dict[str, float] = {}
        """The same ratio over the predicted one."""

    def compose(
        self,
        base: LeverCase,
        levers: Sequence[Lever],
        *,
        base_runs: bool,
        n_processes: int = N_PROCESSES,
    ) -> LeverStack:
        """The levers that gained, each when screened on top of those before it, with sound numbers.

        Levers that are sure to gain are screened together. Where they do not disappoint, nothing else is
        screened before they are proved, whose turns show what each of them does. Levers that are expected to
        gain nothing wait for `go_on`. Where numbers do not hold, the search is made again without the lever.
        What is screened leaves the time for a proof in `n_processes`.
        """
        start = LeverStack(base=base)
        self._n_processes = n_processes
        self._tried.clear()
        whole = self._sure(base, levers) if base_runs and not self._seeks_memory else None
        trial = None if whole is None else self._at_once(whole.stack)
        if whole is None or trial is None or not promising(trial) or trial.ratio is None:
            return self._sound(start, levers, HOPEFUL, base_runs=base_runs)
        if trial.ratio.estimate <= whole.expected * DISAPPOINTING:
            return whole.stack
        climbed = self._sound(start, levers, HOPEFUL, base_runs=base_runs)
        return climbed if self._seen(climbed) <= trial.ratio.estimate else whole.stack

    def _sure(self, base: LeverCase, levers: Sequence[Lever]) -> Whole | None:
        """The composition of all levers that are sure to gain, one on top of another, the largest gain first;
        None of fewer than two. Of two that set the same and are as good, the earlier in the catalogue."""
        stack, expected = LeverStack(base=base), 1.0
        while True:
            ratios = {
                lever: self._surely(lever, stack.top)
                for lever in levers
                if lever.saves == "time" and lever not in stack.levers and not _rivals(lever, stack)
            }
            best = min(ratios, key=lambda each: ratios[each], default=None)
            if best is None or ratios[best] > SURE:
                break
            as_good = [
                lever
                for lever in ratios
                if _sets_alike(lever, best) and ratios[lever] * WORTH_HAVING <= ratios[best]
            ]
            stack, expected = stack.on_top(as_good[0]), expected * ratios[best]
        return Whole(stack, expected) if len(stack.levers) > 1 else None

    def _surely(self, lever: Lever, base: LeverCase) -> float:
        """Returns the predicted ratio, or else, on a GPU, what stored trials show, though no more than a
        finding leaves."""
        candidate = pull(lever, base)
        if candidate == base or self._bench.obstacle(lever, base) is not None:
            return 1.0
        expected = self._bench.tries.expected(base, candidate)
        if expected is not None:
            return expected
        if base.device != "cuda":
            return 1.0
        return max(self._usually(lever, base), self._bounds.get(lever.name, 0.0))

    def _at_once(self, stack: LeverStack) -> Trial | None:
        """The whole stack against its base, where there is time to prove it too."""
        lever = together(stack.levers)
        known = self._ledger.known(lever.name, stack.base)
        then_s = self._bench.proof_s(stack.as_one(0), LEAST_PROCESSES)
        return known or self._screened(
            lever, stack.base, LeverStack(base=stack.base), then_s=then_s
        )

    def _seen(self, stack: LeverStack) -> float:
        """Returns the product of the ratios that its steps had when they were tried."""
        made = (self._ledger.known(lever.name, below) for lever, below, _ in stack.steps)
        return prod(each.ratio.estimate for each in made if each is not None and each.ratio)

    def go_on(self, proved: LeverStack, levers: Sequence[Lever], *, base_runs: bool) -> LeverStack:
        """A proved stack with what gains on top of it, tried in spite of what was expected: what hides behind
        one bottleneck shows once it is gone (a launch-bound step gains nothing from CUDA graphs while its
        matmuls are slow)."""
        return self._sound(proved, levers, inf, base_runs=base_runs)

    def _sound(
        self, start: LeverStack, levers: Sequence[Lever], most: float, *, base_runs: bool
    ) -> LeverStack:
        while True:
            stack = self._climb(start, levers, most, base_runs=base_runs)
            in_time = self._ledger.allows(self._bench.proof_s(stack))
            wrong = self._wrong_in(stack if in_time else self._bench.as_one(stack))
            if wrong is None:
                return stack
            self._wrong.add(wrong.name)
            self._tried.clear()

    def _wrong_in(self, stack: LeverStack) -> Lever | None:
        """The lowest lever whose numbers do not hold; levers that are one step are taken apart for that."""
        self._bench.checked(stack.claims)
        for lever, below, _ in stack.steps:
            if not self._bench.holds(lever, below):
                return lever if stack == stack.apart else self._wrong_in(stack.apart)
        return None

    def alone(self, base: LeverCase, levers: Sequence[Lever]) -> None:
        """Screen on the base what was not yet, as far as there is time to confirm it, and note what cannot
        apply to it nor ever could."""
        for lever in levers:
            candidate = pull(lever, base)
            if candidate == base or self._ledger.known(lever.name, base) is not None:
                continue
            reason = self._bench.obstacle(lever, base)
            if reason is None and _is_given(lever, base) and self._alone(lever, base) > 1:
                reason = "is expected to be slower than what the step was given in its place"
            if reason is None:
                then_s = self._bench.proof_s(LeverStack(base=base, levers=(lever,)))
                self._screened(lever, base, then_s=then_s)
            elif not any(trial.lever == lever.name for trial in self._ledger.trials):
                key = self._bench.environment_key
                self._ledger.add(refused(lever, base, candidate, key, reason))

    def _climb(
        self, stack: LeverStack, levers: Sequence[Lever], most: float, *, base_runs: bool
    ) -> LeverStack:
        """Screens on top of the stack, and goes on from there, whichever lever is expected to gain most for
        its time, until none is left that is expected to leave less than `most` of the step; until one gained,
        where there is time for the fewest processes alone."""
        while (lever := self._next(stack, levers, most, base_runs=base_runs)) is not None:
            if stack.levers and self._n_processes < N_PROCESSES:
                break
            self._tried.add((lever.name, stack.top))
            trial = self._on_top(lever, stack)
            if trial is not None and (rescues(trial) or promising(trial)):
                higher = self._with(lever, stack, base_runs=base_runs)
                self._replaced(stack, higher, trial)
                stack = higher
        return stack

    def _replaced(self, stack: LeverStack, higher: LeverStack, trial: Trial) -> None:
        """Remembers of the levers that another one took the place of what they are worth beside it. What
        they gained on the base had bf16-mixed screened again on bf16 (a default run on two cores)."""
        if trial.ratio is not None:
            for gone in set(stack.levers) - set(higher.levers):
                self._ratios[gone.name] = 1 / trial.ratio.estimate
                self._errors.pop(gone.name, None)

    def _next(
        self, stack: LeverStack, levers: Sequence[Lever], most: float, *, base_runs: bool
    ) -> Lever | None:
        """A lever that saves memory is left out, unless memory is sought, or the base does not run and the
        lever makes it run. So is one that is expected to be slower than what the stack has on its axis: of
        12 screenings of other precisions on `small` (H200) after bf16 was kept, none gained. What the base
        was given counts as kept: of Llama-1B's 150 s, from bf16, 15 went to tf32 and both mixed precisions.

        In the catalogue's order a search of 125 s put tf32, 1.07× in a noisy screening, under a decode step
        of `2.7B` in bf16, and had no time left for CUDA graphs, predicted 2.78× and worth 5.26×. What
        compiles is dear, and came last until a search of four minutes on nanoGPT's model never reached it.
        """
        top = stack.top
        found: dict[Lever, float] = {}
        for lever in levers:
            idle = lever.saves == "memory" and (base_runs or bool(stack.levers))
            if (
                (idle and not self._seeks_memory)
                or lever in stack.levers
                or lever.name in self._wrong
                or (lever.name, top) in self._tried
            ):
                continue
            expected = self._expected(lever, stack)
            rivals = _rivals(lever, stack) or _is_given(lever, stack.base)
            worse = rivals and expected > 1 and (most < inf or self._is_known(lever, stack))
            if expected < most and not worse:
                found[lever] = log(expected) / self._bench.screen_s(top, pull(lever, top))
        return min(found, key=lambda each: found[each], default=None)

    def _expected(self, lever: Lever, stack: LeverStack) -> float:
        """Returns the expected ratio of what is sought: as it is predicted here, with the error that the
        prediction had where the lever was last seen; else as it was seen, at best as a finding about the base
        allows, or as is usual.

        A CPU's steps are not predicted. In the catalogue's order a run of 100 s on two cores tried
        bf16-mixed alone, 29 times slower there, and neither of the two levers that its findings named.
        """
        base = stack.top
        candidate = pull(lever, base)
        if candidate == base or self._bench.obstacle(lever, base) is not None:
            return 1.0
        expected = self._bench.tries.expected(base, candidate)
        if expected is not None:
            return expected * self._errors.get(lever.name, 1.0)
        if lever.name in self._ratios:
            return self._ratios[lever.name]
        if _is_given(lever, stack.base):
            return self._alone(lever, stack.base)
        rivals = [self._alone(each, stack.base) for each in _rivals(lever, stack)]
        return self._alone(lever, stack.base) / min(rivals) if rivals else self._unseen(lever, base)

    def _is_known(self, lever: Lever, stack: LeverStack) -> bool:
        """Whether more is known of the lever than what is usual: what is predicted, by rates, or was seen."""
        base, tries = stack.base, self._bench.tries
        candidate = pull(lever, base)
        return (
            lever.name in self._ratios
            or tries.expected(base, candidate) is not None
            or tries.by_rates(base, candidate) is not None
        )

    def _alone(self, lever: Lever, base: LeverCase) -> float:
        """Returns the expected ratio of the lever by itself: what two of one axis are compared by where their
        stack is not predicted."""
        expected = self._bench.tries.expected(base, pull(lever, base))
        return self._unseen(lever, base) if expected is None else expected

    def _unseen(self, lever: Lever, base: LeverCase) -> float:
        """Returns the expected ratio of what is neither predicted nor seen: by the rates of matrix products,
        though never beyond what a finding leaves, else as the finding says or as is usual.

        Products are not all of a step. By their rates alone fp16-mixed came before bf16, which was predicted
        to be 8.7 times faster and was (nanoGPT's model, H200).
        """
        by_rates = self._bench.tries.by_rates(base, pull(lever, base))
        if by_rates is None:
            return self._bounds.get(lever.name, self._usually(lever, base))
        return max(by_rates, self._bounds.get(lever.name, 0.0))

    def _usually(self, lever: Lever, base: LeverCase) -> float:
        """Returns the share of a step that the lever usually leaves of a step with the defaults in its place.

        A module's own attention is as it was written, and gains nothing from SDPA where it calls it already.
        Where a finding saw it written out, it is the default. minGPT's (H200) was left so for want of this:
        34.1 ms, where nanoGPT's same blocks with SDPA take 24.4.
        """
        compiled = base.configuration.compile != "none"
        if compiled and any(field in FUSED_BY_COMPILING for field, _ in lever.sets):
            return 1.0
        by_default = all(_value(base, axis) == axis.default for axis in _axes(lever))
        known = by_default or lever.name in self._unwritten
        return UNKNOWN if lever.usual_speedup is None or not known else 1 / lever.usual_speedup

    def _with(self, lever: Lever, stack: LeverStack, *, base_runs: bool) -> LeverStack:
        """The stack with the lever, in the place of what it replaces if all steps can stand so.

        Where the base does not run, what stands on it must have been seen to.
        """
        higher = stack.in_place(lever)
        if not self._bench.stands(higher):
            higher = stack.on_top(lever)
        if base_runs or self._rescued(higher.levers[0], stack.base):
            return higher
        return stack

    def _rescued(self, foot: Lever, base: LeverCase) -> bool:
        trial = self._ledger.known(foot.name, base) or self._screened(foot, base)
        return trial is not None and rescues(trial)

    def _on_top(self, lever: Lever, stack: LeverStack) -> Trial | None:
        """The lever on the stack's top, screened there if it was not yet, with time left to check
        its numbers and to prove the stack that it would make."""
        base = stack.top
        candidate = pull(lever, base)
        if candidate == base or self._bench.obstacle(lever, base) is not None:
            return None
        known = self._ledger.known(lever.name, base)
        if known is not None:
            return known
        higher = stack.in_place(lever)
        then_s = self._bench.proof_s(self._bench.as_one(higher), self._n_processes)
        return self._screened(lever, base, stack, then_s=then_s)

    def _screened(
        self, lever: Lever, base: LeverCase, on: LeverStack | None = None, *, then_s: float = 0.0
    ) -> Trial | None:
        """Its trial, where there is time for it and for what must follow."""
        candidate = pull(lever, base)
        names = " + ".join(each.name for each in on.levers) if on is not None else ""
        what = f"screening {lever.name}" + (f" on {names}" if names else "")
        hopeless = self._bench.tries.hopeless(base, candidate)
        if hopeless is not None:
            trial = refused(lever, base, candidate, self._bench.environment_key, hopeless)
            self._ledger.add(trial)
            return trial
        cost_s = self._bench.screen_s(base, candidate)
        if not self._ledger.affords(
            cost_s, what, lever.name, base, screened_on=names, then_s=then_s
        ):
            return None
        try:
            with self._ledger.keeping(then_s):
                trial = self._bench.tries.screen(lever, base, candidate)
        except OutOfTimeError:
            self._ledger.skip(Undone(what, lever.name, base, screened_on=names, cost_s=cost_s))
            return None
        self._ledger.add(trial)
        if trial.ratio is not None:
            self._ratios[lever.name] = seen = trial.ratio.estimate
            expected = self._bench.tries.expected(base, candidate)
            if expected:
                self._errors[lever.name] = seen / expected
        return trial


def bounds_of(told: Sequence[Diagnosis]) -> dict[str, float]:
    """Returns for each lever the share of the step's time that its largest finding leaves."""
    bounds: dict[str, float] = {}
    for found in (each for diagnosis in told for each in diagnosis.findings):
        if found.bound is None:
            continue
        for gain in found.gains:
            bounds[gain.lever] = min(bounds.get(gain.lever, 1.0), 1 / found.bound)
    return bounds


def unwritten_of(told: Sequence[Diagnosis]) -> frozenset[str]:
    """Returns the levers that bring the attention which a finding saw written out."""
    found = (each for diagnosis in told for each in diagnosis.findings)
    return frozenset(
        gain.lever for each in found if each.code == naive_attention.CODE for gain in each.gains
    )


def _rivals(lever: Lever, stack: LeverStack) -> list[Lever]:
    """Returns the levers of the stack that set what this one sets."""
    return [each for each in stack.apart.levers if _sets_alike(lever, each)]


def _sets_alike(lever: Lever, other: Lever) -> bool:
    return not {field for field, _ in lever.sets}.isdisjoint(field for field, _ in other.sets)


def _is_given(lever: Lever, base: LeverCase) -> bool:
    """Whether the base has a setting of its own where the lever has one."""
    return any(_value(base, axis) not in (axis.default, axis.as_written()) for axis in _axes(lever))


def _axes(lever: Lever) -> list[Axis]:
    fields = {field for field, _ in lever.sets}
    return [axis for axis in AXES if axis.name in fields]


def _value(case: LeverCase, axis: Axis) -> Value:
    return case.configuration.settings.get(axis.name, axis.default)
