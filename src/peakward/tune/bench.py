"""Gives a search and a proof what they share: trials, ledger, costs and obstacles."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec.structs import replace

from peakward.levers.catalogue import numerics_class, pull
from peakward.records.case import LeverCase
from peakward.records.errors import OutOfTimeError
from peakward.records.lever import Lever, NumericsClass, NumericsVerdict, Trial
from peakward.tune.costs import N_PROCESSES, Costs
from peakward.tune.ledger import Ledger
from peakward.tune.lever_stack import LeverStack
from peakward.tune.trials import Comparison, misjudged, refused

Obstacle = Callable[[Lever, LeverCase], str | None]


class Tries(Protocol):
    """The measurements that a search asks for; `laboratory.Laboratory` makes them."""

    def screen(self, lever: Lever, base: LeverCase, candidate: LeverCase) -> Trial:
        """A quick look."""

    def expected(self, base: LeverCase, candidate: LeverCase) -> float | None:
        """The predicted ratio of what is sought, candidate over base."""

    def by_rates(self, base: LeverCase, candidate: LeverCase) -> float | None:
        """The ratio of times by the rates of matrix products alone."""

    def hopeless(self, base: LeverCase, candidate: LeverCase) -> str | None:
        """Why a candidate need not be timed."""

    def seen_s(self, case: LeverCase) -> float | None:
        """How long a screened case's turn should take."""

    def start_s(self) -> float | None:
        """How long the latest process took to start."""

    def check(
        self, declared: NumericsClass, base: LeverCase, candidate: LeverCase
    ) -> NumericsVerdict:
        """The numbers."""

    def confirm(
        self,
        cases: Sequence[LeverCase],
        comparisons: Sequence[Comparison],
        *,
        affords_more: Callable[[], bool],
    ) -> tuple[Trial, ...]:
        """The proof."""


class Bench:
    """The laboratory, the ledger, and what is known of costs and obstacles."""

    def __init__(
        self,
        tries: Tries,
        ledger: Ledger,
        costs: Costs,
        obstacle: Obstacle,
        environment_key: str,
    ) -> None:
        self.tries, self.ledger, self._costs = tries, ledger, costs
        self.obstacle, self.environment_key = obstacle, environment_key
        self._numerics: dict[tuple[NumericsClass, LeverCase, LeverCase], NumericsVerdict] = {}

    @property
    def costs(self) -> Costs:
        """With the start of a process as the latest was: the first of a day reads torch from a cold disk
        and those after it do not, and a baseline may be measured in one that was there."""
        start_s = self.tries.start_s()
        return self._costs if start_s is None else replace(self._costs, start_s=start_s)

    def stands(self, stack: LeverStack) -> bool:
        """Whether each lever can be pulled where it stands."""
        return all(self.obstacle(lever, below) is None for lever, below, _ in stack.steps)

    def screen_s(self, base: LeverCase, candidate: LeverCase) -> float:
        """How long a screening should take."""
        return self.costs.screen_s(candidate, base_s=self.tries.seen_s(base))

    def turns_s(self, cases: Iterable[LeverCase], n_processes: int = N_PROCESSES) -> float:
        """How long all cases in turn should take, in each of some processes."""
        once_s = sum(self.tries.seen_s(case) or self.costs.turn_s(case) for case in cases)
        return self.costs.starts_s(n_processes) + n_processes * once_s

    def checks_s(self, pulled: Iterable[tuple[Lever, LeverCase, LeverCase]]) -> float:
        """How long it should take to check levers, each from a base to a candidate."""
        return sum(
            self.costs.check_s(candidate)
            for lever, base, candidate in pulled
            if (numerics_class(lever, candidate), base, candidate) not in self._numerics
        )

    def holds(self, lever: Lever, base: LeverCase) -> bool:
        """Whether the lever's numbers hold on the base; where they do not, its trial says so."""
        candidate = pull(lever, base)
        numerics = self.checked(numerics_class(lever, candidate), base, candidate)
        if numerics.verdict == "holds":
            return True
        key = self.environment_key
        known = self.ledger.known(lever.name, base) or refused(lever, base, candidate, key, "")
        self.ledger.add(misjudged(known, numerics))
        return False

    def checked(
        self, declared: NumericsClass, base: LeverCase, candidate: LeverCase
    ) -> NumericsVerdict:
        """Whether the candidate computes what its class promises; asked once."""
        key = declared, base, candidate
        if key not in self._numerics:
            try:
                self._numerics[key] = self.tries.check(declared, base, candidate)
            except OutOfTimeError as error:
                self._numerics[key] = NumericsVerdict(
                    declared=declared, verdict="not computed", reason=str(error)
                )
        return self._numerics[key]
