"""Composes levers greedily by screening them, one on top of another."""

from collections.abc import Iterable, Mapping, Sequence

from peakward.levers.catalogue import pull
from peakward.records.case import LeverCase
from peakward.records.errors import OutOfTimeError
from peakward.records.finding import Diagnosis
from peakward.records.lever import Lever, Trial
from peakward.tune.bench import Bench
from peakward.tune.ledger import Undone
from peakward.tune.lever_stack import LeverStack
from peakward.tune.screening import promising, rescues
from peakward.tune.trials import refused

RIVAL_LOSSES = 2
"""On how many compositions a lever may lose to what sets the same before it is given up. Of the
12 screenings of other precisions on `small` (H200) after bf16 was kept, none gained."""


class Search:
    """Finds a lever stack by screening. It keeps nothing; `proof.Proof` does that.

    Args:
        bounds: what the findings about the base leave of its time, by the levers that answer them.
    """

    def __init__(
        self,
        bench: Bench,
        *,
        seeks_memory: bool = False,
        bounds: Mapping[str, float] | None = None,
    ) -> None:
        self._bench, self._ledger, self._seeks_memory = bench, bench.ledger, seeks_memory
        self._bounds = bounds or {}
        self._wrong: set[str] = set()
        """Levers whose numbers do not hold."""
        self._lost_on: dict[str, set[LeverCase]] = {}
        """The compositions on which each lever lost to a rival."""
        self._ratios: dict[str, float] = {}
        """The ratio of what is sought in each lever's latest screening, candidate over base."""

    def compose(self, base: LeverCase, levers: Sequence[Lever], *, base_runs: bool) -> LeverStack:
        """The levers that gained, each when screened on top of those before it, with sound numbers.

        Where numbers do not hold, the search is made again without the lever.
        """
        while True:
            stack = self._compose(base, levers, base_runs=base_runs)
            wrong = next(
                (lever for lever, below, _ in stack.steps if not self._bench.holds(lever, below)),
                None,
            )
            if wrong is None:
                return stack
            self._wrong.add(wrong.name)
            self._lost_on.clear()

    def alone(self, base: LeverCase, levers: Sequence[Lever]) -> None:
        """Screen on the base what was not yet, and note what cannot apply to it nor ever could."""
        for lever in levers:
            candidate = pull(lever, base)
            if candidate == base or self._ledger.known(lever.name, base) is not None:
                continue
            reason = self._bench.obstacle(lever, base)
            if reason is None:
                self._screened(lever, base)
            elif not any(trial.lever == lever.name for trial in self._ledger.trials):
                key = self._bench.environment_key
                self._ledger.add(refused(lever, base, candidate, key, reason))

    def _compose(self, base: LeverCase, levers: Sequence[Lever], *, base_runs: bool) -> LeverStack:
        """Passes over the levers for as long as one gains: what hides behind one bottleneck shows
        once it is gone (a launch-bound step gains nothing from CUDA graphs while its matmuls are
        slow).

        What compiles waits until nothing else gains, for then every further screening compiles too
        (6 s instead of 2 for `small` on an H200). A lever that saves memory is left out, unless
        memory is sought, or the base does not run and it does.
        """
        stack = LeverStack(base=base)
        quick = [each for each in levers if each.needs != "compiler"]
        slow = [each for each in levers if each.needs == "compiler"]
        while True:
            higher = self._pass(stack, quick, base_runs=base_runs)
            if higher.levers == stack.levers:
                higher = self._pass(stack, slow, base_runs=base_runs)
            if higher.levers == stack.levers:
                return stack
            stack = higher

    def _pass(self, stack: LeverStack, levers: Iterable[Lever], *, base_runs: bool) -> LeverStack:
        """Each lever on top of those that gained, in the order of their latest gains, or predicted ones.

        In the catalogue's order a search of 125 s put tf32, 1.07× in a noisy screening, under a decode
        step of `2.7B` in bf16, and had no time left for CUDA graphs, predicted 2.78× and worth 5.26×.
        """
        top = stack.top
        for lever in sorted(levers, key=lambda each: self._reckoned(each, top)):
            idle = lever.saves == "memory" and (base_runs or stack.levers)
            if (
                (idle and not self._seeks_memory)
                or lever in stack.levers
                or lever.name in self._wrong
                or self._lost(lever)
            ):
                continue
            trial = self._on_top(lever, stack)
            if trial is None:
                continue
            if rescues(trial) or promising(trial):
                stack = self._with(lever, stack, base_runs=base_runs)
            elif trial.verdict == "rejected" and _rivals(lever, stack):
                self._lost_on.setdefault(lever.name, set()).add(stack.top)
        return stack

    def _reckoned(self, lever: Lever, base: LeverCase) -> float:
        """Returns the expected ratio of what is sought: as it was seen, as it is predicted, or at best as
        a finding about the base allows; 1 where nothing is known.

        A CPU's steps are not predicted. In the catalogue's order a run of 100 s on two cores tried
        bf16-mixed alone, 29 times slower there, and neither of the two levers that its findings named.
        """
        if lever.name in self._ratios:
            return self._ratios[lever.name]
        candidate = pull(lever, base)
        if candidate == base or self._bench.obstacle(lever, base) is not None:
            return 1.0
        expected = self._bench.tries.expected(base, candidate)
        return self._bounds.get(lever.name, 1.0) if expected is None else expected

    def _lost(self, lever: Lever) -> bool:
        return len(self._lost_on.get(lever.name, ())) >= RIVAL_LOSSES

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
        then_s = self._bench.checks_s(higher.steps) + self._bench.turns_s(higher.cases)
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
            self._ratios[lever.name] = trial.ratio.estimate
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


def _rivals(lever: Lever, stack: LeverStack) -> bool:
    """Whether the stack has a lever that sets what this one sets."""
    fields = {field for field, _ in lever.sets}
    return any(fields & {field for field, _ in each.sets} for each in stack.levers)
