"""The greedy composition: every lever alone, then one on top of another, best first."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from peakward.catalogue.levers import numerics_class, pull
from peakward.records.case import ModelCase
from peakward.records.lever import Lever, NumericsClass
from peakward.records.trial import NumericsVerdict, Trial
from peakward.tune import trials
from peakward.tune.budget import Budget
from peakward.tune.costs import Costs

WEAKEST_FIRST: tuple[NumericsClass, ...] = ("approximate", "reordered", "exact")
Obstacle = Callable[[Lever, ModelCase], str | None]
Listener = Callable[[str], None]


class Tries(Protocol):
    """What `trials.Laboratory` does; a search needs no more of it."""

    def screen(self, lever: Lever, base: ModelCase, candidate: ModelCase) -> Trial:
        """A quick look."""

    def check(
        self, declared: NumericsClass, base: ModelCase, candidate: ModelCase
    ) -> NumericsVerdict:
        """The numbers."""

    def confirm(
        self,
        name: str,
        base: ModelCase,
        candidate: ModelCase,
        numerics: NumericsVerdict | None,
        *,
        affords_more: Callable[[], bool],
    ) -> Trial:
        """The proof."""


class Search:
    """Carries the composition so far, the trials made and the budget."""

    def __init__(
        self,
        tries: Tries,
        *,
        obstacle: Obstacle,
        budget: Budget,
        costs: Costs,
        reserve_s: float,
        environment_key: str,
        on_stage: Listener,
    ) -> None:
        self.trials: list[Trial] = []
        self.best: ModelCase | None = None
        """The composition so far, once there is one."""
        self._kept: list[Lever] = []
        self._barred: set[str] = set()
        """Levers whose numbers were wrong: no composition mends that."""
        self.skipped: list[str] = []
        """What the budget left untried."""
        self._tries, self._obstacle = tries, obstacle
        self._budget, self._reserve_s = budget, reserve_s
        self.costs = costs
        self._key, self._on_stage = environment_key, on_stage

    def compose(self, base: ModelCase, levers: Sequence[Lever]) -> ModelCase:
        """The composition of the levers that won, each judged on top of those before it.

        Round by round: every lever is screened on what is kept, for what hides behind one
        bottleneck shows once it is gone (a launch-bound step gains nothing from CUDA graphs while
        its matmuls are slow), and of those that look faster the first to be confirmed is kept.
        A screening takes 2 s where a confirmation takes 40 (H200, `small`), so a round confirms
        the greatest gain first. A lever that sets what a kept one set, and gained less alone, is
        not tried again; nor one that saves memory, unless the base does not run and it does.
        """
        alone = {lever.name: self._alone(lever, base) for lever in levers}
        self.trials.extend(trial for trial in alone.values() if trial is not None)
        waiting = [
            lever
            for lever in levers
            if (trial := alone[lever.name]) is not None
            and (lever.saves == "time" or trials.rescues(trial))
        ]
        current, screened = base, [(lever, alone[lever.name]) for lever in waiting]
        while (won := self._first_kept(screened)) is not None:
            lever, trial = won
            self.best = current = trial.candidate
            self._kept.append(lever)
            waiting = [each for each in waiting if each != lever and each.name not in self._barred]
            screened = [(each, self._on_top(each, current)) for each in waiting]
        return current

    def _first_kept(
        self, screened: Sequence[tuple[Lever, Trial | None]]
    ) -> tuple[Lever, Trial] | None:
        """The screened trials on one base proved, the most promising first, until one is kept.

        Each trial that is proved takes its screening's place among the trials.
        """
        worthy = [
            (lever, trial)
            for lever, trial in screened
            if trial is not None and (trials.rescues(trial) or trials.promising(trial))
        ]
        for lever, trial in sorted(worthy, key=lambda each: _screened_ratio(each[1]) or 0.0):
            proved = self._proved(lever, trial)
            self.trials.remove(trial)
            self.trials.append(proved)
            if proved.verdict == "kept":
                return lever, proved
        return None

    def prove(self, base: ModelCase, best: ModelCase) -> None:
        """The whole composition against the base: its numbers, then pairs of its own.

        Each lever was held to the composition before it, so errors could add up; here they are
        held to the base, under the weakest class of those kept.
        """
        ran = any(trial.base == base and trial.pairs for trial in self.trials)
        if len(self._kept) < 2 or not ran:
            return
        if not self._affords(self.costs.confirm_s(best), "confirming the composition"):
            return
        classes = {numerics_class(lever, best) for lever in self._kept}
        declared = next(each for each in WEAKEST_FIRST if each in classes)
        numerics = self._tries.check(declared, base, best)
        self.trials.append(self._confirmed("composition", base, best, numerics))

    def _alone(self, lever: Lever, base: ModelCase) -> Trial | None:
        candidate = pull(lever, base)
        if candidate == base:
            return None
        reason = self._obstacle(lever, base)
        if reason is not None:
            return trials.refused(lever, base, candidate, self._key, reason)
        return self._screen(lever, base, candidate)

    def _screen(self, lever: Lever, base: ModelCase, candidate: ModelCase) -> Trial | None:
        if not self._affords(self.costs.screen_s(candidate), f"screening {lever.name}"):
            return None
        return self._noted(self._tries.screen(lever, base, candidate))

    def _on_top(self, lever: Lever, current: ModelCase) -> Trial | None:
        candidate = pull(lever, current)
        if candidate == current or self._obstacle(lever, current) is not None:
            return None
        trial = self._screen(lever, current, candidate)
        if trial is not None:
            self.trials.append(trial)
        return trial

    def _proved(self, lever: Lever, screened: Trial) -> Trial:
        """The trial after its numbers and, where the base runs, its pairs."""
        base, candidate = screened.base, screened.candidate
        if not self._affords(self.costs.confirm_s(candidate), f"confirming {lever.name}"):
            return screened
        numerics = self._tries.check(numerics_class(lever, candidate), base, candidate)
        judged = msgspec.structs.replace(screened, numerics=numerics)
        if numerics.verdict == "violated":
            self._barred.add(lever.name)
            reason = f"not {numerics.declared} as declared: {numerics.reason}"
            return msgspec.structs.replace(judged, verdict="rejected", reason=reason)
        if numerics.verdict == "not computed":
            reason = f"its numbers could not be checked: {numerics.reason}"
            return msgspec.structs.replace(judged, verdict="inconclusive", reason=reason)
        if trials.rescues(screened):
            return msgspec.structs.replace(judged, verdict="kept")
        return self._confirmed(lever.name, base, candidate, numerics)

    def _confirmed(
        self, name: str, base: ModelCase, candidate: ModelCase, numerics: NumericsVerdict
    ) -> Trial:
        def affords_more() -> bool:
            cost_s = self.costs.confirm_more_s(candidate)
            return self._budget.allows(cost_s, reserve_s=self._reserve_s)

        return self._noted(
            self._tries.confirm(name, base, candidate, numerics, affords_more=affords_more)
        )

    def _noted(self, trial: Trial) -> Trial:
        """The trial; what Ctrl-C ended counts as not done."""
        if trials.interrupted(trial):
            self.skipped.append(f"{trial.lever} ({trial.reason})")
        return trial

    def _affords(self, cost_s: float, what: str) -> bool:
        if self._budget.allows(cost_s, reserve_s=self._reserve_s):
            self._on_stage(what)
            return True
        self.skipped.append(what)
        return False


def _screened_ratio(trial: Trial) -> float | None:
    """Candidate's time over base's in the screening pair; None where there was none."""
    return trial.pairs[0].candidate_s / trial.pairs[0].base_s if trial.pairs else None
