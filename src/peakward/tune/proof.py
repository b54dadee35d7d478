"""Which rungs of a ladder hold: their numbers, then all of them timed in the same processes."""

from collections.abc import Sequence

import msgspec

from peakward.catalogue import levers as catalogue
from peakward.catalogue.levers import numerics_class
from peakward.records.case import ModelCase
from peakward.records.lever import Lever, NumericsClass
from peakward.records.trial import Trial
from peakward.tune import trials
from peakward.tune.bench import Bench
from peakward.tune.costs import N_MORE_PROCESSES
from peakward.tune.ladder import Ladder
from peakward.tune.trials import Comparison

WEAKEST_FIRST: tuple[NumericsClass, ...] = ("approximate", "reordered", "exact")
COMPOSITION = "composition"
"""The name of the trial of several rungs at once against the base."""


class Proof:
    """Proves ladders, and levers each on its own."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._ledger = bench, bench.ledger
        self._wholes: dict[ModelCase, Trial] = {}
        """Of the base against a rung above the first: from the same processes as the rungs."""

    def prove(self, ladder: Ladder) -> Ladder:
        """The ladder up to the highest rung that was confirmed, as was the whole up to there.

        A rung that was not comes back once at the top, where what hid its gain (another bottleneck,
        a host whose launches differ from process to process) may be gone. If all is slower so, or
        there is no time, the first ladder stands. Nothing stands on a rung that was rejected; one
        that the intervals could not settle stays among others that hold, for the whole is proved
        with it, and its trial says what it is. Last, the numbers of the whole are held to the base's.
        """
        sound = self._sound(ladder)
        held = ladder = self._affordable(sound)
        if sound.levers and not ladder.levers:
            # A proof goes before what the reserve is for: the profiles that explain it.
            self._ledger.reserve_s = 0.0
            held = ladder = self._affordable(sound.first(1))
        if ladder.levers:
            held = self._climb(ladder) or ladder.first(0)
            again = self._mended(ladder)
            if again.levers != held.levers and self._worth_another(again):
                held = self._faster(held, self._climb(again) or held)
        return self._whole(held)

    def prove_alone(self, base: ModelCase) -> None:
        """Levers that look faster on the base and are no rung on it: each against the base."""
        worthy = sorted(
            (
                trial
                for trial in self._ledger.trials
                if trial.base == base and trial.stage == "screened" and trials.promising(trial)
            ),
            key=lambda trial: trial.time_ratio.estimate if trial.time_ratio else 1.0,
        )
        while worthy and not self._ledger.allows(self._alone_s(base, worthy)):
            self._ledger.skipped.append(f"confirming {worthy.pop().lever} alone")
        rungs = [(catalogue.lever(each.lever), each.candidate) for each in worthy]
        sound = [
            self._compared(lever, base, top)
            for lever, top in rungs
            if self._bench.holds(lever, base)
        ]
        if sound:
            self._ledger.announce("confirming levers alone")
            self._confirm((base, *(each.candidate for each in sound)), sound)

    def _sound(self, ladder: Ladder) -> Ladder:
        """Without the levers whose numbers do not hold where they stand."""
        for lever, base, _ in ladder.rungs:
            if not self._bench.holds(lever, base):
                return self._sound(ladder.without({lever.name}))
        return ladder

    def _affordable(self, ladder: Ladder) -> Ladder:
        """Its lowest rungs, as many as there is time to prove."""
        while ladder.levers and not self._ledger.allows(self._bench.turns_s(ladder.cases)):
            self._ledger.skipped.append(f"confirming {ladder.levers[-1].name}")
            ladder = ladder.first(len(ladder.levers) - 1)
        return ladder

    def _climb(self, ladder: Ladder) -> Ladder | None:
        """Up to the highest rung that holds, all timed in the same processes; None where one of them
        failed there."""
        self._ledger.announce("confirming " + " + ".join(each.name for each in ladder.levers))
        n_rescued = self._n_rescued(ladder)
        cases, rungs = ladder.cases[n_rescued:], ladder.rungs[n_rescued:]
        wholes = [
            Comparison(COMPOSITION, cases[0], top, None) for top in cases[2:] if not n_rescued
        ]
        comparisons = [self._compared(*rung) for rung in rungs] + wholes
        made = self._confirm(cases, comparisons) if rungs else ()
        if any(trial.time_ratio is None for trial in made):
            return None
        singles, whole = made[: len(rungs)], made[len(rungs) :]
        self._wholes |= {each.candidate: each for each in whole}
        return ladder.first(n_rescued + _n_held(singles, whole))

    def _faster(self, first: Ladder, second: Ladder) -> Ladder:
        """The second, unless the first gains on it what is worth having."""
        gained = self._ratio(first) <= self._ratio(second) * (1 - trials.LEAST_GAIN)
        return first if gained else second

    def _ratio(self, ladder: Ladder) -> float:
        """Of the whole ladder's time over the base's, as it was proved; 1 where it was not."""
        alone = ladder.levers[0].name if len(ladder.levers) == 1 else ""
        trial = self._wholes.get(ladder.top) or self._ledger.known(alone, ladder.base)
        return trial.time_ratio.estimate if trial and trial.time_ratio else 1.0

    def _n_rescued(self, ladder: Ladder) -> int:
        """1 where the base does not run: what made it run is kept for that, untimed."""
        lever, base, _ = ladder.rungs[0]
        trial = self._ledger.known(lever.name, base)
        if trial is None or not trials.rescues(trial):
            return 0
        self._ledger.add(msgspec.structs.replace(trial, verdict="kept"))
        return 1

    def _mended(self, ladder: Ladder) -> Ladder:
        """The rungs that did not hold at the top, once; without those that failed to run."""
        made = [(each, self._ledger.known(each.name, base)) for each, base, _ in ladder.rungs]
        failed = {lever.name for lever, trial in made if trial is None or trial.status != "ok"}
        fallen = [
            lever
            for lever, trial in made
            if lever.name not in failed and trial and trial.verdict != "kept"
        ]
        left = ladder.without({*failed, *(lever.name for lever in fallen)})
        mended = left
        for lever in fallen:
            mended = mended.on_top(lever)
        return left if mended.levers == ladder.levers else mended

    def _worth_another(self, ladder: Ladder) -> bool:
        """Whether the mended ladder can be pulled, its numbers hold and there is time to prove it."""
        if any(trials.interrupted(trial) for trial in self._ledger.trials):
            return False
        if not self._bench.stands(ladder):
            return False
        if self._sound(ladder).levers != ladder.levers:
            return False
        return self._ledger.affords(
            self._bench.turns_s(ladder.cases), "confirming the composition again"
        )

    def _whole(self, ladder: Ladder) -> Ladder:
        """The ladder whose top holds against the base itself, under the weakest class of its levers:
        each lever was held to the rung below it, so errors could add up."""
        while (trial := self._wholes.get(ladder.top)) is not None:
            classes = {numerics_class(lever, ladder.top) for lever in ladder.levers}
            declared = next(each for each in WEAKEST_FIRST if each in classes)
            numerics = self._bench.checked(declared, ladder.base, ladder.top)
            if numerics.verdict != "violated":
                self._ledger.add(msgspec.structs.replace(trial, numerics=numerics))
                break
            self._ledger.add(trials.misjudged(trial, numerics))
            ladder = ladder.first(len(ladder.levers) - 1)
        return ladder

    def _alone_s(self, base: ModelCase, screened: Sequence[Trial]) -> float:
        pulled = [(catalogue.lever(each.lever), base, each.candidate) for each in screened]
        cases = (base, *(each.candidate for each in screened))
        return self._bench.checks_s(pulled) + self._bench.turns_s(cases)

    def _compared(self, lever: Lever, base: ModelCase, candidate: ModelCase) -> Comparison:
        numerics = self._bench.checked(numerics_class(lever, candidate), base, candidate)
        return Comparison(lever.name, base, candidate, numerics)

    def _confirm(
        self, cases: Sequence[ModelCase], comparisons: Sequence[Comparison]
    ) -> tuple[Trial, ...]:
        more_s = self._bench.turns_s(cases, N_MORE_PROCESSES)
        made = self._bench.tries.confirm(
            cases, comparisons, affords_more=lambda: self._ledger.allows(more_s)
        )
        for trial in made:
            known = self._ledger.known(trial.lever, trial.base)
            lost = trial.time_ratio is None and known is not None and known.stage == "confirmed"
            if trial.lever != COMPOSITION and not lost:
                self._ledger.add(trial)
        return made


def _n_held(rungs: Sequence[Trial], wholes: Sequence[Trial]) -> int:
    """How many rungs stand; `wholes` are the second and those above it against the base."""
    verdicts = [trial.verdict for trial in rungs]
    n_sound = verdicts.index("rejected") if "rejected" in verdicts else len(verdicts)
    proved = ["kept", *(trial.verdict for trial in wholes)] if wholes else ["kept"] * len(rungs)
    held = [i for i in range(n_sound) if verdicts[i] == proved[i] == "kept"]
    return held[-1] + 1 if held else 0
