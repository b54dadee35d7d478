"""The greedy composition, found by screening: one lever on top of another, what gains most first."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from peakward.catalogue.levers import numerics_class, pull
from peakward.records.case import ModelCase
from peakward.records.lever import Lever
from peakward.records.trial import Trial
from peakward.tune import trials
from peakward.tune.bench import Bench
from peakward.tune.ladder import Ladder

RIVAL_LOSSES = 2
"""On how many compositions a lever may lose to what sets the same before it is given up. Of the 26
screenings of precisions on `small` (H200) after bf16 was kept, none gained."""


class Search:
    """Climbs a ladder of levers; nothing is kept by it, `proof.Proof` does that."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._ledger = bench, bench.ledger
        self._given_up: set[str] = set()
        """Levers whose numbers do not hold, and rivals that lost."""
        self._losses: Counter[str] = Counter()
        self._ratios: dict[str, float] = {}
        """Of each lever's latest screening, candidate's time over base's."""

    def climb(self, base: ModelCase, levers: Sequence[Lever]) -> Ladder:
        """Every lever alone, then passes over those left, each on top of what gained before it.

        A pass takes the levers in the order of their latest gains, and another follows for as long
        as one of them gains: what hides behind one bottleneck shows once it is gone (a launch-bound
        step gains nothing from CUDA graphs while its matmuls are slow). Of what it screens it leaves
        the time to prove the ladder. A lever that saves memory is left out, unless the base does
        not run and it does.
        """
        alone = {lever.name: self._alone(lever, base) for lever in levers}
        waiting = [
            lever
            for lever in levers
            if (trial := alone[lever.name]) is not None
            and (lever.saves == "time" or trials.rescues(trial))
        ]
        ladder = Ladder(base=base)
        while True:
            climbed = self._pass(ladder, sorted(waiting, key=lambda each: self._rank(each, alone)))
            if climbed.levers == ladder.levers:
                return ladder
            ladder = climbed
            waiting = [
                each
                for each in waiting
                if each not in ladder.levers and each.name not in self._given_up
            ]

    def _pass(self, ladder: Ladder, levers: Iterable[Lever]) -> Ladder:
        for lever in levers:
            if lever.name in self._given_up:
                continue
            trial = self._on_top(lever, ladder)
            if trial is None:
                continue
            if self._gains(lever, trial):
                ladder = ladder.on_top(lever)
            elif trial.verdict == "rejected" and _rivals(lever, ladder):
                self._losses[lever.name] += 1
                if self._losses[lever.name] == RIVAL_LOSSES:
                    self._given_up.add(lever.name)
        return ladder

    def _gains(self, lever: Lever, trial: Trial) -> bool:
        """Whether it looks faster, or runs where its base does not, and its numbers hold."""
        if not trials.rescues(trial) and not trials.promising(trial):
            return False
        declared = numerics_class(lever, trial.candidate)
        verdict = self._bench.checked(declared, trial.base, trial.candidate)
        if verdict.verdict == "holds":
            self._ledger.add(msgspec.structs.replace(trial, numerics=verdict))
            return True
        # No composition mends wrong numbers.
        self._given_up.add(lever.name)
        self._ledger.add(trials.misjudged(trial, verdict))
        return False

    def _rank(self, lever: Lever, alone: dict[str, Trial | None]) -> tuple[bool, float]:
        trial = alone[lever.name]
        return not (trial and trials.rescues(trial)), self._ratios.get(lever.name, 1.0)

    def _alone(self, lever: Lever, base: ModelCase) -> Trial | None:
        candidate = pull(lever, base)
        if candidate == base:
            return None
        reason = self._bench.obstacle(lever, base)
        if reason is not None:
            trial = trials.refused(lever, base, candidate, self._bench.environment_key, reason)
            self._ledger.add(trial)
            return trial
        return self._screened(lever, base, candidate, f"screening {lever.name}")

    def _on_top(self, lever: Lever, ladder: Ladder) -> Trial | None:
        """The lever on the ladder's top, screened there if it was not yet."""
        base = ladder.top
        candidate = pull(lever, base)
        if candidate == base or self._bench.obstacle(lever, base) is not None:
            return None
        known = self._ledger.known(lever.name, base)
        if known is not None:
            return known
        declared = numerics_class(lever, candidate)
        then_s = self._bench.check_s(declared, base, candidate)
        then_s += self._bench.turns_s(ladder.on_top(lever).cases)
        what = f"screening {lever.name} on top"
        return self._screened(lever, base, candidate, what, then_s=then_s)

    def _screened(
        self, lever: Lever, base: ModelCase, candidate: ModelCase, what: str, then_s: float = 0.0
    ) -> Trial | None:
        """Its trial, where there is time for it and for what must follow."""
        if not self._ledger.affords(self._bench.costs.screen_s(candidate), what, then_s=then_s):
            return None
        trial = self._bench.tries.screen(lever, base, candidate)
        self._ledger.add(trial)
        if trial.time_ratio is not None:
            self._ratios[lever.name] = trial.time_ratio.estimate
        return trial


def _rivals(lever: Lever, ladder: Ladder) -> bool:
    """Whether the ladder has a lever that sets what this one sets."""
    fields = {field for field, _ in lever.sets}
    return any(fields & {field for field, _ in each.sets} for each in ladder.levers)
