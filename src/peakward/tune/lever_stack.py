"""A lever stack: the base at the bottom, and one lever more at each step; what its proof says of it."""

from collections.abc import Container, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, Self

import msgspec

from peakward.levers import catalogue
from peakward.levers.catalogue import numerics_class, pull
from peakward.records.case import LeverCase
from peakward.records.lever import TOGETHER, Claim, Lever, NumericsClass, Trial

WEAKEST_FIRST: tuple[NumericsClass, ...] = ("approximate", "reordered", "exact")


def claim(lever: Lever, base: LeverCase, candidate: LeverCase) -> Claim:
    """The claim that the lever makes of its candidate's numbers."""
    return Claim(base=base, candidate=candidate, declared=numerics_class(lever, candidate))


def together(levers: Sequence[Lever]) -> Lever:
    """Several levers as one, pulled in their order: its effect is theirs together."""
    if len(levers) == 1:
        return levers[0]
    classes = {each.numerics for each in levers}
    return Lever(
        name=TOGETHER.join(each.name for each in levers),
        summary="; ".join(each.summary for each in levers),
        sets=tuple(dict(pair for each in levers for pair in each.sets).items()),
        numerics=next(each for each in WEAKEST_FIRST if each in classes),
    )


def parts(name: str) -> tuple[Lever, ...]:
    """The levers that a name is of: one, or several together."""
    return tuple(catalogue.lever(each) for each in name.split(TOGETHER))


class LeverStack(msgspec.Struct, frozen=True, kw_only=True):
    """Levers in the order in which they are pulled."""

    base: LeverCase
    levers: tuple[Lever, ...] = ()

    @property
    def cases(self) -> tuple[LeverCase, ...]:
        """The base, then the case on each step."""
        return tuple(
            accumulate(self.levers, lambda case, lever: pull(lever, case), initial=self.base)
        )

    @property
    def top(self) -> LeverCase:
        """All levers pulled."""
        return self.cases[-1]

    @property
    def steps(self) -> tuple[tuple[Lever, LeverCase, LeverCase], ...]:
        """Each lever with the case below it and the one that it makes."""
        cases = self.cases
        return tuple(zip(self.levers, cases[:-1], cases[1:], strict=True))

    @property
    def apart(self) -> Self:
        """The stack with a step for each lever, also for those that were tried together."""
        return self._of(part for lever in self.levers for part in parts(lever.name))

    def as_one(self, n_below: int) -> Self:
        """The stack with all levers above its `n_below` lowest as one step."""
        above = self.levers[n_below:]
        return self._of((*self.levers[:n_below], together(above))) if above else self

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims on numbers: each step's class against the one below it, then the whole's against the
        base under the weakest class of its levers, because the errors of steps could add up."""
        steps = tuple(claim(*step) for step in self.steps)
        if len(steps) < 2:
            return steps
        classes = {numerics_class(lever, self.top) for lever in self.levers}
        weakest = next(each for each in WEAKEST_FIRST if each in classes)
        return *steps, Claim(base=self.base, candidate=self.top, declared=weakest)

    def on_top(self, lever: Lever) -> Self:
        """One step more, without those whose settings it overwrites."""
        return self._of([*self._beside(lever), lever])

    def in_place(self, lever: Lever) -> Self:
        """The lever where the lowest step stood whose settings it overwrites, else on top.

        What stands above may hold on no other setting: CUDA graphs gained 1.01× on fp32 and 1.94× on
        bf16 (`small`, H200).
        """
        left = self._beside(lever)
        gone = [i for i, each in enumerate(self.levers) if each not in left]
        place = gone[0] if gone else len(left)
        return self._of([*left[:place], lever, *left[place:]])

    def first(self, n: int) -> Self:
        """The lowest steps."""
        return self._of(self.levers[:n])

    def without(self, names: Container[str]) -> Self:
        """Those steps taken out, the others in their order."""
        return self._of(each for each in self.levers if each.name not in names)

    def _beside(self, lever: Lever) -> tuple[Lever, ...]:
        """Returns the levers whose settings still count when the lever is pulled."""
        top = pull(lever, self.top)
        return tuple(
            step for step in self.levers if pull(lever, self.without({step.name}).top) != top
        )

    def _of(self, levers: Iterable[Lever]) -> Self:
        return msgspec.structs.replace(self, levers=tuple(levers))


class ProvedStack(NamedTuple):
    """A lever stack after it was timed once."""

    stack: LeverStack
    steps: tuple[Trial, ...]
    """The trial of each timed step against the one below it."""
    wholes: tuple[Trial, ...]
    """The trials of the second timed step and of each above it, against the lowest timed case."""

    @property
    def n_untimed(self) -> int:
        """1 where the base does not run: what made it run is kept for that."""
        return len(self.stack.levers) - len(self.steps)

    @property
    def held(self) -> LeverStack:
        """The stack up to the highest confirmed step whose whole was confirmed too; nothing stands on a
        step that was rejected or failed."""
        n_sound = next((i for i, each in enumerate(self.steps) if _fell(each)), len(self.steps))
        proved = [trial.verdict == "kept" for trial in (*self.steps[:1], *self.wholes)]
        held = [i for i in range(n_sound) if proved[i] and self.steps[i].verdict == "kept"]
        return self.stack.first(self.n_untimed + (held[-1] + 1 if held else 0))

    @property
    def ratio(self) -> float:
        """The held stack's ratio to the lowest timed case, of what is sought; 1 where none was timed."""
        n_timed = len(self.held.levers) - self.n_untimed
        whole = (*self.steps[:1], *self.wholes)[n_timed - 1] if n_timed else None
        return whole.ratio.estimate if whole and whole.ratio else 1.0

    @property
    def rest(self) -> LeverStack:
        """The stack without the steps that failed or did not hold."""
        return self.stack.without({lever.name for lever, trial in self._timed if not _held(trial)})

    @property
    def mended(self) -> LeverStack:
        """Moves the steps that did not hold to the top, once, and drops those that failed to run."""
        mended = self.rest
        for lever, trial in self._timed:
            if trial.status == "ok" and not _held(trial):
                mended = mended.on_top(lever)
        return self.rest if mended.levers == self.stack.levers else mended

    @property
    def _timed(self) -> tuple[tuple[Lever, Trial], ...]:
        return tuple(zip(self.stack.levers[self.n_untimed :], self.steps, strict=True))


def _held(trial: Trial) -> bool:
    return trial.status == "ok" and trial.verdict == "kept"


def _fell(trial: Trial) -> bool:
    return trial.verdict == "rejected" or trial.time_ratio is None
