"""Describes the request of an investigation."""

from collections.abc import Callable

import msgspec

from peakward.levers.catalogue import changes
from peakward.records.case import LeverCase
from peakward.records.lever import Lever
from peakward.tune.aim import Aim
from peakward.tune.bench import Obstacle


class Investigation(msgspec.Struct, frozen=True, kw_only=True):
    """A start, what may be done to it, and for how long."""

    case: LeverCase
    """The start: the model, the workload and the user's own configuration or the baseline."""
    levers: tuple[Lever, ...]
    budget_s: float
    command: str
    """Reproduces the investigation."""
    obstacle: Obstacle
    """Why a lever cannot apply to a case on this machine, or None."""
    to_command: Callable[[LeverCase], str | None]
    """The command line that measures a case."""
    aim: Aim = Aim()

    def forbids(self, lever: Lever, base: LeverCase) -> str | None:
        """Why the lever is not to be tried on the base, or None."""
        return self.aim.obstacle(lever, base) or self.obstacle(lever, base)

    @property
    def applicable(self) -> tuple[Lever, ...]:
        """The levers that change the start and may be tried on it."""
        return tuple(
            lever
            for lever in self.levers
            if changes(lever, self.case) and self.forbids(lever, self.case) is None
        )
