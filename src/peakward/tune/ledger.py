"""Keeps what an investigation has tried, the time that is left, and what its budget left undone."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from peakward.records.case import LeverCase
from peakward.records.errors import OutOfTimeError, PeakwardError
from peakward.records.lever import TOGETHER, Trial
from peakward.records.study import Unfinished
from peakward.report.format import format_duration

Listener = Callable[[str], None]


class Undone(NamedTuple):
    """Something that was not done when its turn came."""

    what: str
    lever: str | None = None
    base: LeverCase | None = None
    """The base of the trial that was not made."""
    confirming: bool = False
    screened_on: str | None = None
    """The levers below one that was not screened, in words."""
    cost_s: float = 0.0
    """How long it should take."""


class Budget:
    """A stretch of wall time that began when it was made, or at `began_s` by the clock.

    Whoever asks `allows` says what the next action should cost. Such estimates may be wrong, as on a
    machine that others use too: what is asked of the workers is ended when `left_s` is over.
    """

    def __init__(
        self,
        total_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        began_s: float | None = None,
    ) -> None:
        self.total_s = total_s
        self._clock = clock
        self._start_s = clock() if began_s is None else began_s

    def spent_s(self) -> float:
        """Since the beginning."""
        return self._clock() - self._start_s

    def left_s(self) -> float:
        """Until the end; below 0 after it."""
        return self.total_s - self.spent_s()

    def left_for_the_baseline_s(self) -> float:
        """The same, but at least `BASELINE_S` from the beginning."""
        return max(self.left_s(), BASELINE_S - self.spent_s())

    def allows(self, cost_s: float, *, reserve_s: float = 0.0) -> bool:
        """Whether something of this cost still fits, with the reserve untouched."""
        return self.spent_s() + cost_s + reserve_s <= self.total_s

    @contextmanager
    def for_the_baseline(self) -> Iterator[None]:
        """Around what a run cannot do without.

        Raises:
            PeakwardError: the time ended in the block.
        """
        try:
            yield
        except OutOfTimeError as error:
            raise PeakwardError(
                f"expected a budget in which the baseline can be measured, got "
                f"{format_duration(self.total_s)}: {error}; give a larger one, or a smaller case"
            ) from None


class Ledger:
    """The trials, one for each lever from each base to each candidate, the latest in place of an
    earlier one."""

    def __init__(self, budget: Budget, *, reserve_s: float, announce: Listener) -> None:
        self.announce = announce
        """Says what begins."""
        self.reserve_s = reserve_s
        """Kept back for the investigation's end."""
        self._budget = budget
        self._undone: list[Undone] = []
        self._trials: dict[tuple[str, LeverCase, LeverCase], Trial] = {}

    @property
    def trials(self) -> tuple[Trial, ...]:
        """In the order in which they were last made."""
        return tuple(self._trials.values())

    @property
    def skipped(self) -> list[str]:
        """Names what was left undone for want of time or was ended from outside, each once,
        what was to be screened on the same levers together."""
        left = [each for each in self._undone if not self._made_up(each)]
        levers: dict[str, dict[str, None]] = {}
        for each in left:
            if each.screened_on is not None and each.lever is not None:
                levers.setdefault(each.screened_on, {})[each.lever] = None
        return list(dict.fromkeys(_told(each, levers) for each in left))

    def known(self, name: str, base: LeverCase) -> Trial | None:
        """The lever's latest trial on the base."""
        made = (each for each in reversed(self.trials) if (each.lever, each.base) == (name, base))
        return next(made, None)

    def settled(self, name: str, base: LeverCase, candidate: LeverCase) -> Trial | None:
        """The confirmation that kept or rejected the candidate; None without one."""
        trial = self._trials.get((name, base, candidate))
        decided = (
            trial is not None and trial.stage == "confirmed" and trial.verdict != "inconclusive"
        )
        return trial if decided else None

    def add(self, trial: Trial) -> None:
        """Enter it. What no arm of it ended counts as not done, too."""
        key = (trial.lever, trial.base, trial.candidate)
        self._trials.pop(key, None)
        if trial.stage == "confirmed" and trial.time_ratio is not None:
            self._drop_screenings_together(trial)
        self._trials[key] = trial
        if trial.ended_by != "case":
            self._undone.append(Undone(f"{trial.lever} ({trial.reason})"))

    def _drop_screenings_together(self, confirmed: Trial) -> None:
        """Forgets that the confirmed composition was screened in one piece."""
        made = list(self._trials.items())
        for key, each in made:
            same = (each.base, each.candidate) == (confirmed.base, confirmed.candidate)
            if same and each.stage == "screened" and len(each.levers) > 1:
                del self._trials[key]

    def unfinished(self) -> Unfinished | None:
        """Returns what the budget left undone; None where it sufficed."""
        left = [each for each in self._undone if not self._made_up(each)]
        if not left:
            return None
        tried = {name for trial in self.trials for name in trial.levers}
        screenings = _apart(each.lever for each in left if each.screened_on is not None)
        # On one composition each is a step; the dearest stands for those on all of them.
        costs_s: dict[tuple[str, bool], float] = {}
        for each in left:
            key = each.lever or each.what, each.confirming
            costs_s[key] = max(each.cost_s, costs_s.get(key, 0.0))
        return Unfinished(
            budget_s=self._budget.total_s,
            short_s=sum(costs_s.values()),
            levers=_each_once(name for name in screenings if name not in tried),
            unconfirmed=_each_once(_apart(each.lever for each in left if each.confirming)),
        )

    def skip(self, undone: Undone) -> None:
        """Note it."""
        self._undone.append(undone)

    def left_s(self) -> float:
        """Until the end of the budget, less what is kept back."""
        return self._budget.left_s() - self.reserve_s

    @contextmanager
    def keeping(self, more_s: float) -> Iterator[None]:
        """Keep back more while the block lasts: for what must follow what is done in it."""
        self.reserve_s += more_s
        try:
            yield
        finally:
            self.reserve_s -= more_s

    def allows(self, cost_s: float) -> bool:
        """Whether it fits beside what is kept back."""
        return self._budget.allows(cost_s, reserve_s=self.reserve_s)

    def affords(
        self,
        cost_s: float,
        what: str,
        lever: str | None = None,
        base: LeverCase | None = None,
        *,
        screened_on: str | None = None,
        then_s: float = 0.0,
    ) -> bool:
        """Whether it fits, and what must follow it; announced if so, noted as left undone if not, until the
        lever has a trial on the base."""
        if self.allows(cost_s + then_s):
            self.announce(what)
            return True
        self.skip(Undone(what, lever, base, screened_on=screened_on, cost_s=cost_s))
        return False

    def _made_up(self, undone: Undone) -> bool:
        if undone.lever is None or undone.base is None:
            return False
        trial = self.known(undone.lever, undone.base)
        return trial is not None and (trial.stage == "confirmed" or not undone.confirming)


def _each_once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _apart(names: Iterable[str | None]) -> list[str]:
    """The names of levers, also of those that would have been tried together."""
    return [each for name in names if name is not None for each in name.split(TOGETHER)]


def _told(undone: Undone, levers: Mapping[str, Iterable[str]]) -> str:
    """In words, with all levers that were to be screened where it was."""
    if undone.screened_on is None:
        return undone.what
    on = f" on {undone.screened_on}" if undone.screened_on else ""
    return f"screening {', '.join(levers[undone.screened_on])}{on}"


BASELINE_S = 60.0
"""For the ceilings and the baseline, however small the budget: without them there is nothing to show."""
