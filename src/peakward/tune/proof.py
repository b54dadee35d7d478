"""Which rungs of a ladder hold: their numbers, then all of them timed in the same processes."""

from collections.abc import Sequence

import msgspec

from peakward.levers import catalogue
from peakward.levers.catalogue import numerics_class
from peakward.records.case import LeverCase
from peakward.records.errors import OutOfTimeError
from peakward.records.lever import Lever, NumericsClass
from peakward.records.trial import Trial
from peakward.stats.verdict import LEAST_GAIN
from peakward.tune import trials
from peakward.tune.bench import Bench
from peakward.tune.climb import Climb
from peakward.tune.costs import N_MORE_PROCESSES
from peakward.tune.ladder import Ladder
from peakward.tune.ledger import Undone
from peakward.tune.screening import promising
from peakward.tune.trials import Comparison

WEAKEST_FIRST: tuple[NumericsClass, ...] = ("approximate", "reordered", "exact")
COMPOSITION = "composition"
"""The name of the trial of several rungs at once against the lowest case that runs."""


class Proof:
    """Proves ladders, and levers each on its own."""

    def __init__(self, bench: Bench, *, base_runs: bool) -> None:
        self._bench, self._ledger = bench, bench.ledger
        self._n_untimed = 0 if base_runs else 1

    def prove(self, ladder: Ladder) -> Ladder:
        """The ladder up to the highest rung that was confirmed, as was the whole up to there.

        A rung that was not comes back once at the top, where what hid its gain (another bottleneck,
        a host whose launches differ from process to process) may be gone. If all is slower so, or
        there is no time, the first ladder stands. Nothing stands on a rung that was rejected; one
        that the intervals could not settle stays among others that hold, for the whole is proved
        with it, and its trial says what it is. Last, the numbers of the whole are held to the base's.
        """
        ladder = self._affordable(self._sound(ladder))
        if not ladder.levers:
            return ladder
        if self._n_untimed:
            self._keep_foot(ladder)
        climb = self._climb(ladder)
        again = climb.mended
        if again.levers != climb.held.levers and self._worth_another(again):
            climb = self._better(climb, self._climb(again))
        self._enter(climb)
        return self._whole(climb)

    def prove_alone(self, base: LeverCase) -> Ladder:
        """Levers that look faster on the base and are no rung on it: each against the base.

        Returns:
            A ladder of the one of them that gains most, of those that were kept.
        """
        worthy = sorted(
            (
                trial
                for trial in self._ledger.trials
                if trial.base == base and trial.stage == "screened" and promising(trial)
            ),
            key=_ratio,
        )
        kept: list[Trial] = []
        while worthy:
            while worthy and not self._ledger.allows(self._alone_s(base, worthy)):
                last = worthy.pop()
                name, candidate = last.lever, last.candidate
                what, cost_s = f"confirming {name} alone", self._bench.turns_s((candidate,))
                self._ledger.skip(Undone(what, name, base, confirming=True, cost_s=cost_s))
            made = self._confirmed_alone(base, worthy)
            failed = {trial.lever for trial in made if trial.status != "ok"}
            kept += [trial for trial in made if trial.verdict == "kept"]
            untimed = {trial.lever for trial in made if trial.time_ratio is None}
            worthy = [each for each in worthy if each.lever in untimed - failed] if failed else []
        best = min(kept, key=_ratio, default=None)
        return Ladder(base=base, levers=(catalogue.lever(best.lever),) if best else ())

    def _confirmed_alone(self, base: LeverCase, worthy: Sequence[Trial]) -> tuple[Trial, ...]:
        rungs = [(catalogue.lever(each.lever), each.candidate) for each in worthy]
        sound = [
            self._compared(lever, base, top)
            for lever, top in rungs
            if self._bench.holds(lever, base)
        ]
        if not sound:
            return ()
        self._ledger.announce("confirming levers alone")
        made = self._confirm((base, *(each.candidate for each in sound)), sound)
        self._enter_all(made)
        return made

    def _sound(self, ladder: Ladder) -> Ladder:
        """Without the levers whose numbers do not hold where they stand."""
        for lever, base, _ in ladder.rungs:
            if not self._bench.holds(lever, base):
                return self._sound(ladder.without({lever.name}))
        return ladder

    def _affordable(self, ladder: Ladder) -> Ladder:
        """Its lowest rungs, as many as there is time to prove; for the first alone, what is kept back
        for the profiles that would explain it is given up."""
        while ladder.levers and not self._ledger.allows(self._bench.turns_s(ladder.cases)):
            if len(ladder.levers) == 1 and self._ledger.reserve_s:
                self._ledger.reserve_s = 0.0
                continue
            lever, below, top = ladder.rungs[-1]
            what, cost_s = f"confirming {lever.name}", self._bench.turns_s((top,))
            self._ledger.skip(Undone(what, lever.name, below, confirming=True, cost_s=cost_s))
            ladder = ladder.first(len(ladder.levers) - 1)
        return ladder

    def _climb(self, ladder: Ladder) -> Climb:
        self._ledger.announce("confirming " + " + ".join(each.name for each in ladder.levers))
        cases, rungs = ladder.cases[self._n_untimed :], ladder.rungs[self._n_untimed :]
        if not rungs:
            return Climb(ladder, (), ())
        comparisons = [
            *(self._compared(*rung) for rung in rungs),
            *(Comparison(COMPOSITION, cases[0], top, None) for top in cases[2:]),
        ]
        made = self._confirm(cases, comparisons)
        climb = Climb(ladder, made[: len(rungs)], made[len(rungs) :])
        self._enter(climb)
        return climb

    def _better(self, first: Climb, second: Climb) -> Climb:
        """The second, unless it failed or the first gains on it what is worth having."""
        failed = any(trial.time_ratio is None for trial in second.rungs)
        gained = first.ratio <= second.ratio * (1 - LEAST_GAIN)
        return first if failed or gained else second

    def _keep_foot(self, ladder: Ladder) -> None:
        lever, base, _ = ladder.rungs[0]
        trial = self._ledger.known(lever.name, base)
        if trial is not None:
            self._ledger.add(msgspec.structs.replace(trial, verdict="kept"))

    def _worth_another(self, ladder: Ladder) -> bool:
        """Whether the mended ladder can be pulled, there is time to prove it and its numbers hold."""
        if any(trial.interrupted for trial in self._ledger.trials):
            return False
        if not ladder.levers or not self._bench.stands(ladder):
            return False
        cost_s = self._bench.checks_s(ladder.rungs) + self._bench.turns_s(ladder.cases)
        if not self._ledger.affords(cost_s, "confirming the composition again"):
            return False
        return self._sound(ladder).levers == ladder.levers

    def _whole(self, climb: Climb) -> Ladder:
        """The held ladder whose top's numbers hold against the base itself, under the weakest class of
        its levers: each lever was held to the rung below it, so errors could add up."""
        ladder = climb.held
        timed = {trial.candidate: trial for trial in climb.wholes}
        while len(ladder.levers) > 1:
            classes = {numerics_class(lever, ladder.top) for lever in ladder.levers}
            declared = next(each for each in WEAKEST_FIRST if each in classes)
            numerics = self._bench.checked(declared, ladder.base, ladder.top)
            trial = timed.get(ladder.top)
            if trial is not None:
                sound = numerics.verdict == "holds"
                checked = msgspec.structs.replace(trial, numerics=numerics)
                self._ledger.add(checked if sound else trials.misjudged(trial, numerics))
            if numerics.verdict != "violated":
                break
            ladder = ladder.first(len(ladder.levers) - 1)
        return ladder

    def _alone_s(self, base: LeverCase, screened: Sequence[Trial]) -> float:
        pulled = [(catalogue.lever(each.lever), base, each.candidate) for each in screened]
        cases = (base, *(each.candidate for each in screened))
        return self._bench.checks_s(pulled) + self._bench.turns_s(cases)

    def _compared(self, lever: Lever, base: LeverCase, candidate: LeverCase) -> Comparison:
        numerics = self._bench.checked(numerics_class(lever, candidate), base, candidate)
        return Comparison(lever.name, base, candidate, numerics)

    def _confirm(
        self, cases: Sequence[LeverCase], comparisons: Sequence[Comparison]
    ) -> tuple[Trial, ...]:
        """Trials without a ratio where the time ended first."""
        more_s = self._bench.turns_s(cases, N_MORE_PROCESSES)
        try:
            return self._bench.tries.confirm(
                cases, comparisons, affords_more=lambda: self._ledger.allows(more_s)
            )
        except OutOfTimeError as error:
            each_s = self._bench.turns_s(cases) / len(comparisons)
            for name, base, _, _ in comparisons:
                lever = None if name == COMPOSITION else name
                what = f"confirming {name}"
                self._ledger.skip(Undone(what, lever, base, confirming=True, cost_s=each_s))
            key = self._bench.environment_key
            return tuple(trials.untimed(each, key, str(error)) for each in comparisons)

    def _enter(self, climb: Climb) -> None:
        self._enter_all(climb.rungs)

    def _enter_all(self, made: Sequence[Trial]) -> None:
        """But for those that were not timed because another case failed: they say nothing."""
        for trial in made:
            if trial.time_ratio is not None or trial.status != "ok":
                self._ledger.add(trial)


def _ratio(trial: Trial) -> float:
    return trial.ratio.estimate if trial.ratio else 1.0
