"""A composition as a ladder: the base at its foot, one lever more on each rung."""

from collections.abc import Container, Iterable
from itertools import accumulate
from typing import Self

import msgspec

from peakward.catalogue.levers import pull
from peakward.records.case import ModelCase
from peakward.records.lever import Lever


class Ladder(msgspec.Struct, frozen=True, kw_only=True):
    """Levers in the order in which they are pulled."""

    base: ModelCase
    levers: tuple[Lever, ...] = ()

    @property
    def cases(self) -> tuple[ModelCase, ...]:
        """The base, then the case on each rung."""
        return tuple(
            accumulate(self.levers, lambda case, lever: pull(lever, case), initial=self.base)
        )

    @property
    def top(self) -> ModelCase:
        """All levers pulled."""
        return self.cases[-1]

    @property
    def rungs(self) -> tuple[tuple[Lever, ModelCase, ModelCase], ...]:
        """Each lever with the case below it and the one that it makes."""
        cases = self.cases
        return tuple(zip(self.levers, cases[:-1], cases[1:], strict=True))

    def on_top(self, lever: Lever) -> Self:
        """One rung more, without those that then change nothing: whose settings it overwrites."""
        levers = [*self.levers, lever]
        top = pull(lever, self.top)
        for each in self.levers:
            others = [other for other in levers if other != each]
            if self._of(others).top == top:
                levers = others
        return self._of(levers)

    def first(self, n: int) -> Self:
        """The lowest rungs."""
        return self._of(self.levers[:n])

    def without(self, names: Container[str]) -> Self:
        """Those rungs taken out, the others in their order."""
        return self._of(each for each in self.levers if each.name not in names)

    def _of(self, levers: Iterable[Lever]) -> Self:
        return msgspec.structs.replace(self, levers=tuple(levers))
