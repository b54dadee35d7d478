"""Gives a search and a proof what they share: trials, ledger, costs and obstacles."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec.structs import replace

from peakward.levers.catalogue import pull
from peakward.records.case import LeverCase
from peakward.records.errors import OutOfTimeError
from peakward.records.lever import Claim, Lever, NumericsVerdict, Trial
from peakward.tune.costs import N_PROCESSES, ORACLE, Costs
from peakward.tune.ledger import Ledger
from peakward.tune.lever_stack import LeverStack, claim
from peakward.tune.trials import Comparison, misjudged, refused

Obstacle = Callable[[Lever, LeverCase], str | None]


COMPOSITION = "composition"
"""The name of the trial of several steps at once against the lowest case that runs."""


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

    def n_prepared(self) -> int:
        """How many processes have been started already."""

    def check(self, claims: Sequence[Claim]) -> tuple[NumericsVerdict, ...]:
        """The numbers of each."""

    def on_text(
        self, claims: Sequence[Claim], verdicts: Sequence[NumericsVerdict]
    ) -> tuple[NumericsVerdict, ...]:
        """The numbers of each, with what a real model loses."""

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
        self._numerics: dict[Claim, NumericsVerdict] = {}
        self._run_s: float | None = None
        """How long the latest check took for each computation in it."""

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
        return self.costs.screen_s(candidate, on=base, base_s=self.tries.seen_s(base))

    def turns_s(self, cases: Sequence[LeverCase], n_processes: int = N_PROCESSES) -> float:
        """How long all cases in turn should take, in each of some processes."""
        return self._starts_s(n_processes) + n_processes * sum(self._each_s(cases))

    def _starts_s(self, n_processes: int) -> float:
        return self.costs.starts_s(max(n_processes - self.tries.n_prepared(), 0))

    def proof_s(self, stack: LeverStack, n_processes: int = N_PROCESSES) -> float:
        """How long it should take to check the stack's numbers and to confirm what is not settled of it. As
        many processes as can start at once do so while numbers are checked."""
        checks_s, starts_s = self.checks_s(stack.claims), self._starts_s(n_processes)
        meanwhile_s = min(checks_s, starts_s, self.costs.start_s)
        return checks_s - meanwhile_s + self.turns_s(self.open_cases(stack), n_processes)

    def as_one(self, stack: LeverStack, n_untimed: int = 0) -> LeverStack:
        """The stack with all that is not settled of it as one step."""
        settled = (self.ledger.settled(lever.name, *both) for lever, *both in stack.steps)
        n_below = next((i for i, each in enumerate(settled) if each is None), len(stack.levers))
        # The lowest step of a base that does not run is kept because it runs.
        return stack.as_one(max(n_below, n_untimed))

    def open_cases(self, stack: LeverStack) -> tuple[LeverCase, ...]:
        """The cases of the stack that must be timed, in its order, for all that is not settled of it."""
        asked = {case for each in self.unsettled(stack) for case in (each.base, each.candidate)}
        return tuple(case for case in stack.cases if case in asked)

    def unsettled(self, stack: LeverStack, n_untimed: int = 0) -> list[Comparison]:
        """The comparisons that no confirmation has settled: each step's with the one below it, and each
        composition's with the lowest timed case."""
        cases = stack.cases[n_untimed:]
        asked = [
            *(
                Comparison(lever.name, base, candidate, None)
                for lever, base, candidate in stack.steps[n_untimed:]
            ),
            *(Comparison(COMPOSITION, cases[0], top, None) for top in cases[2:]),
        ]
        return [each for each in asked if self.ledger.settled(*each.key) is None]

    def checks_s(self, claims: Iterable[Claim]) -> float:
        """How long it should take to check what is not known yet: the oracle and each case once."""
        asked = [each for each in claims if each not in self._numerics]
        if not asked:
            return 0.0
        cases = _cases(asked)
        if self._run_s is not None:
            return (ORACLE + len(cases)) * self._run_s
        both = zip(cases, self._each_s(cases), strict=True)
        runs_s = [self.costs.check_s(case, turn_s=turn_s) for case, turn_s in both]
        return ORACLE * runs_s[0] + sum(runs_s)

    def _each_s(self, cases: Sequence[LeverCase]) -> list[float]:
        """How long each case should take to be built, to warm up and to run a few steps: as it was seen, and
        of what was not yet, no less than the dearest of the others."""
        seen = [self.tries.seen_s(case) for case in cases]
        least_s = max((each for each in seen if each is not None), default=0.0)
        both = zip(cases, seen, strict=True)
        return [each or max(least_s, self.costs.turn_s(case)) for case, each in both]

    def holds(self, lever: Lever, base: LeverCase) -> bool:
        """Whether the lever's numbers hold on the base; where they do not, its trial says so."""
        candidate = pull(lever, base)
        (numerics,) = self.checked((claim(lever, base, candidate),))
        if numerics.verdict == "holds":
            return True
        key = self.environment_key
        known = self.ledger.known(lever.name, base) or refused(lever, base, candidate, key, "")
        self.ledger.add(misjudged(known, numerics))
        return False

    def checked(self, claims: Sequence[Claim]) -> tuple[NumericsVerdict, ...]:
        """Whether candidates compute what their classes promise. What is not known yet is asked together,
        so that it shares an oracle."""
        asked = [each for each in dict.fromkeys(claims) if each not in self._numerics]
        if asked:
            left_s = self.ledger.left_s()
            try:
                verdicts = self.tries.check(asked)
                self._run_s = (left_s - self.ledger.left_s()) / (ORACLE + len(_cases(asked)))
                verdicts = self.tries.on_text(asked, verdicts)
            except OutOfTimeError as error:
                verdicts = tuple(
                    NumericsVerdict(
                        declared=each.declared, verdict="not computed", reason=str(error)
                    )
                    for each in asked
                )
            self._numerics |= zip(asked, verdicts, strict=True)
        return tuple(self._numerics[each] for each in claims)


def _cases(claims: Iterable[Claim]) -> tuple[LeverCase, ...]:
    return tuple(dict.fromkeys(case for each in claims for case in (each.base, each.candidate)))
