"""Levers tried on the device: screened, their numbers checked, confirmed."""

import time
from collections.abc import Callable, Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING

import msgspec

from peakward.records.case import LeverCase, ModuleCase
from peakward.records.errors import OutOfTimeError
from peakward.records.lever import Claim, Foretold, Lever, NumericsVerdict, Trial
from peakward.stats.pairs import beyond_doubt
from peakward.tune.costs import (
    COUNTED_SCREEN,
    COUNTED_TURN,
    HEADLINE,
    LEAST_PROCESSES,
    N_MORE_PROCESSES,
    N_PROCESSES,
    SCREEN,
    TURN,
    again_s,
)
from peakward.tune.forecasts import Expectations, captured_as
from peakward.tune.investigation import Aim
from peakward.tune.quality import Reading
from peakward.tune.trials import Comparison, failed_beside, held_to, judged, screened

if TYPE_CHECKING:
    from peakward.lab.measure.messages import Turn, TurnsTimed
    from peakward.lab.measure.sweep import Sweep
    from peakward.store.database import Store

YOUNG = 2
"""The most cases that were screened in a process that is the first of a proof: after a dozen one gave 12.6 ms
where fresh ones gave 8 to 9 (host-bound, H200 machine)."""


class Laboratory:
    """Tries levers through a sweep, which keeps what it measured.

    What a lever is expected to do is written down before its candidate is timed, and takes nothing from
    measurements of cases: of a lever that was screened it is the same when it is confirmed.
    """

    def __init__(
        self,
        sweep: "Sweep",
        store: "Store",
        expectations: Expectations,
        aim: Aim,
        *,
        build_s: float = 0.0,
        real_model: str | None = None,
    ) -> None:
        """
        Args:
            build_s: how long a case takes to be built, before it warms up.
            real_model: reads a text with what levers keep in fewer bits; None where the weights are random.
        """
        self._reading = Reading(sweep, real_model)
        self._build_s = build_s
        self._n_screened = 0
        """Since a process was ended for the next one of a proof."""
        self._sweep, self._store, self._expectations, self._aim = sweep, store, expectations, aim
        counted = aim.objective == "energy"
        self._screen = COUNTED_SCREEN if counted else SCREEN
        self._turn = COUNTED_TURN if counted else TURN
        self._key = sweep.environment.key

    def screen(self, lever: Lever, base: LeverCase, candidate: LeverCase) -> Trial:
        """A quick look: one short measurement of the candidate, and one of its base, for which the baseline's
        own is taken."""
        foretold = self._expectations.foretold(base, candidate)
        start_s = time.monotonic()
        self._n_screened += 1
        known = self._store.measurement(base, HEADLINE, self._key)
        ours = known or self._sweep.measure(base, self._screen)
        theirs = self._sweep.measure(candidate, self._screen)
        trial = screened(lever.name, ours, theirs, wall_s=time.monotonic() - start_s)
        return self._aim.weighed(msgspec.structs.replace(trial, foretold=foretold))

    def expected(self, base: LeverCase, candidate: LeverCase) -> float | None:
        """The predicted ratio of the candidate to the base: of peak memory where that is the objective,
        of time otherwise; None where it is not computed. fp16-mixed, whose loss scaling no capture sees, is
        expected to do as bf16-mixed does."""
        foretold = self._expectations.foretold(_captured(base), _captured(candidate))
        if self._aim.objective == "memory":
            return foretold.memory_ratio
        return None if foretold.time_ratio is None else foretold.time_ratio.estimate

    def by_rates(self, base: LeverCase, candidate: LeverCase) -> float | None:
        """The ratio of times by the rates of matrix products alone; None where the precision stays, no rate
        is known, or memory is the objective."""
        if self._aim.objective == "memory":
            return None
        return self._expectations.by_rates(base, candidate)

    def hopeless(self, base: LeverCase, candidate: LeverCase) -> str | None:
        """Why the candidate cannot be faster than its base, or None, as where time is not what counts."""
        if self._aim.objective == "energy" or self._aim.seeks_memory:
            return None
        known = (
            self._store.measurement(base, each, self._key) for each in (self._screen, HEADLINE)
        )
        timed = [each.summary for each in known if each is not None and each.summary is not None]
        return (
            self._expectations.hopeless(base, candidate, timed[0].median_s.estimate)
            if timed
            else None
        )

    def seen_s(self, case: LeverCase) -> float | None:
        """Returns how long a turn of the case should take, from its screening or its own measurement; None
        without one."""
        known = (
            self._store.measurement(case, each, self._key) for each in (self._screen, HEADLINE)
        )
        found = next((each for each in known if each is not None), None)
        return None if found is None else again_s(found, build_s=self._build_s)

    def start_s(self) -> float | None:
        """Returns how long the latest worker took to start; None before the first."""
        return self._sweep.workers.start_s

    def n_prepared(self) -> int:
        """Returns how many processes of a proof have been started already."""
        return self._sweep.workers.n_prepared

    def check(self, claims: Sequence[Claim]) -> tuple[NumericsVerdict, ...]:
        """Whether candidates compute what their classes promise. Nothing is timed meanwhile, so that the
        processes start of the proof that follows, and that of the best.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        self._sweep.workers.prepare(N_PROCESSES + 1)
        return self._sweep.workers.numerics(claims)

    def on_text(
        self, claims: Sequence[Claim], verdicts: Sequence[NumericsVerdict]
    ) -> tuple[NumericsVerdict, ...]:
        """The verdicts, those on levers that keep fewer bits held to a real model's loss, too."""
        return tuple(map(self._reading.judged, claims, verdicts))

    def confirm(
        self,
        cases: Sequence[LeverCase],
        comparisons: Sequence[Comparison],
        *,
        affords_more: Callable[[], bool],
    ) -> tuple[Trial, ...]:
        """The comparisons, from all cases timed in turn in each of three processes; in two alone where these
        leave no doubt; and in two more where one of them cannot tell, or is faster than can be, and
        `affords_more` has the time.

        Where the time ends in a later process than the second, what was judged last stands, and is not stored
        as final. The interval of two is as wide as two observations make it.

        Every second process goes through the cases backwards, so that what drifts while a process
        lives shows as a spread between processes and not as a gain.

        Raises:
            OutOfTimeError: the time ended in one of the first two.
        """
        known = [(self._store.trial(*each.key, self._key), each.numerics) for each in comparisons]
        found = [
            # Its numbers may have been held to more since.
            self._aim.weighed(msgspec.structs.replace(each, numerics=numerics or each.numerics))
            for each, numerics in known
            if each is not None and each.stage == "confirmed" and self._aim.can_judge(each)
        ]
        if len(found) == len(comparisons):
            return tuple(found)
        told = [self._expectations.foretold(each.base, each.candidate) for each in comparisons]
        start_s = time.monotonic()
        rounds: list[dict[LeverCase, Turn]] = []
        n_wanted = N_PROCESSES
        self._sweep.workers.prepare(n_wanted)
        trials: tuple[Trial, ...] = ()
        while len(rounds) < n_wanted:
            try:
                timed, order = self._round(cases, len(rounds))
            except OutOfTimeError:
                if not trials:
                    raise
                n_wanted = N_PROCESSES
                break
            if timed.status != "ok":
                culprit = None if timed.failed is None else order[timed.failed]
                return tuple(failed_beside(each, self._key, culprit, timed) for each in comparisons)
            rounds.append(dict(zip(order, timed.turns, strict=True)))
            if len(rounds) not in (LEAST_PROCESSES, n_wanted):
                continue
            wall_s = time.monotonic() - start_s
            trials = self._all_judged(comparisons, told, rounds, wall_s)
            if len(rounds) == LEAST_PROCESSES and all(map(beyond_doubt, trials)):
                break
            doubtful = any(trial.verdict == "inconclusive" for trial in trials)
            if len(rounds) == N_PROCESSES and doubtful and affords_more():
                n_wanted += N_MORE_PROCESSES
                self._sweep.workers.prepare(N_MORE_PROCESSES)
        self._keep(trials, final=n_wanted > N_PROCESSES)
        return trials

    def _all_judged(
        self,
        comparisons: Sequence[Comparison],
        told: Sequence[Foretold],
        rounds: "Sequence[dict[LeverCase, Turn]]",
        wall_s: float,
    ) -> tuple[Trial, ...]:
        return tuple(
            self._judged(each, foretold, rounds, wall_s)
            for each, foretold in zip(comparisons, told, strict=True)
        )

    def _judged(
        self,
        comparison: Comparison,
        foretold: Foretold,
        rounds: "Sequence[dict[LeverCase, Turn]]",
        wall_s: float,
    ) -> Trial:
        base_s = geometric_mean(turns[comparison.base].median_s for turns in rounds)
        bound = self._expectations.bound(comparison.base, comparison.candidate, base_s)
        where = self._sweep.workers.rounds
        trial = held_to(judged(comparison, rounds, self._key, wall_s, where), bound)
        return self._aim.weighed(msgspec.structs.replace(trial, foretold=foretold))

    def _round(
        self, cases: Sequence[LeverCase], number: int
    ) -> tuple["TurnsTimed", tuple[LeverCase, ...]]:
        """One process's turns, and the order in which it took the cases."""
        # Each process draws its own memory layout and its own host speed. The one that screened the cases is
        # a process too, while it is young, and what it compiled is there still: of Qwen2-1.5B the whole model
        # takes 67 s for the first time (H200) and some 20 in the next process.
        if number or not 0 < self._n_screened <= YOUNG:
            self._sweep.workers.close()
        self._n_screened = 0
        order = tuple(cases) if number % 2 == 0 else tuple(reversed(cases))
        return self._sweep.workers.turns(order, self._turn), order

    def _keep(self, trials: Sequence[Trial], *, final: bool) -> None:
        """Store what is settled. An inconclusive trial that had no time for more processes is not:
        the same command with more time asks again."""
        for trial in trials:
            if final or trial.verdict != "inconclusive":
                self._store.add_trial(trial)


def _captured(case: LeverCase) -> LeverCase:
    """The module's case as a capture sees it."""
    return captured_as(case) if isinstance(case, ModuleCase) else case
