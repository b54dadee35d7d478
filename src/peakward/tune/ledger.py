"""What an investigation has tried, and what its budget left undone."""

from collections.abc import Callable

from peakward.records.case import ModelCase
from peakward.records.trial import Trial
from peakward.tune.budget import Budget
from peakward.tune.trials import interrupted

Listener = Callable[[str], None]


class Ledger:
    """The trials, one for each lever from each base to each candidate, the latest in place of an
    earlier one."""

    def __init__(self, budget: Budget, *, reserve_s: float, announce: Listener) -> None:
        self.announce = announce
        """Says what begins."""
        self.skipped: list[str] = []
        """What was not done for want of time, or ended by Ctrl-C."""
        self.reserve_s = reserve_s
        """Kept back for the investigation's end."""
        self._budget = budget
        self._trials: dict[tuple[str, ModelCase, ModelCase], Trial] = {}

    @property
    def trials(self) -> tuple[Trial, ...]:
        """In the order in which they were last made."""
        return tuple(self._trials.values())

    def known(self, name: str, base: ModelCase) -> Trial | None:
        """The lever's latest trial on the base."""
        made = (each for each in reversed(self.trials) if (each.lever, each.base) == (name, base))
        return next(made, None)

    def add(self, trial: Trial) -> None:
        """Enter it. What Ctrl-C ended counts as not done, too."""
        key = (trial.lever, trial.base, trial.candidate)
        self._trials.pop(key, None)
        self._trials[key] = trial
        if interrupted(trial):
            self.skipped.append(f"{trial.lever} ({trial.reason})")

    def allows(self, cost_s: float) -> bool:
        """Whether it fits beside what is kept back."""
        return self._budget.allows(cost_s, reserve_s=self.reserve_s)

    def affords(self, cost_s: float, what: str, *, then_s: float = 0.0) -> bool:
        """Whether it and what must follow it fit; announced if so, noted as left undone if not."""
        if self.allows(cost_s + then_s):
            self.announce(what)
            return True
        self.skipped.append(what)
        return False
