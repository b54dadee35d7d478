"""Screens levers: one short measurement of each arm, enough to drop a lever and not to keep it."""

from math import prod

from peakward.levers.catalogue import pull
from peakward.records.case import LeverCase
from peakward.records.errors import OutOfTimeError
from peakward.records.lever import Lever, Trial
from peakward.tune.bench import Bench
from peakward.tune.costs import LEAST_PROCESSES
from peakward.tune.ledger import Undone
from peakward.tune.lever_stack import LeverStack, together
from peakward.tune.outlook import Outlook
from peakward.tune.trials import refused

MARGIN = 1.15
"""A composition is screened and proved where the time is this many times what that should take: without its
second process it is nothing. In simulated seconds a search of 130 s on Llama-1B from bf16 lost that process
without such a margin, because the check of numbers built two kernels."""


class Screening:
    """Makes trials where there is time for them and for what must follow, and enters them."""

    def __init__(self, bench: Bench, outlook: Outlook) -> None:
        self._bench, self._ledger, self._outlook = bench, bench.ledger, outlook

    def on_top(self, lever: Lever, stack: LeverStack, n_processes: int) -> Trial | None:
        """The lever on the stack's top, screened there if it was not yet, with time left to check its numbers
        and to prove the stack that it would make."""
        base = stack.top
        candidate = pull(lever, base)
        if candidate == base or self._bench.obstacle(lever, base) is not None:
            return None
        known = self._ledger.known(lever.name, base)
        if known is not None:
            return known
        then_s = self._bench.proof_s(self._bench.as_one(stack.in_place(lever)), n_processes)
        return self.screened(lever, base, stack, then_s=then_s)

    def at_once(self, stack: LeverStack) -> Trial | None:
        """The whole stack against its base, where there is time to prove it too."""
        lever = together(stack.levers)
        known = self._ledger.known(lever.name, stack.base)
        if known is not None and known.candidate == stack.top:
            return known
        then_s = self._proof_s(stack)
        start = LeverStack(base=stack.base)
        return self.screened(lever, stack.base, start, then_s=then_s, kept_s=then_s / 2)

    def fits(self, stack: LeverStack) -> bool:
        """Whether there is time to screen the whole stack and to prove it."""
        cost_s = self._bench.screen_s(stack.base, stack.top)
        return self._ledger.allows(MARGIN * (cost_s + self._proof_s(stack)))

    def fits_unseen(self, stack: LeverStack) -> bool:
        """Whether there is time to prove it without a screening before."""
        unseen_s = self._bench.costs.unseen_s(stack.top)
        return self._ledger.allows(MARGIN * (self._proof_s(stack) + unseen_s))

    def _proof_s(self, stack: LeverStack) -> float:
        return self._bench.proof_s(stack.as_one(0), LEAST_PROCESSES)

    def seen(self, stack: LeverStack) -> float:
        """Returns the product of the ratios that its steps had when they were tried."""
        made = (self._ledger.known(lever.name, below) for lever, below, _ in stack.steps)
        return prod(each.ratio.estimate for each in made if each is not None and each.ratio)

    def screened(
        self,
        lever: Lever,
        base: LeverCase,
        on: LeverStack | None = None,
        *,
        then_s: float = 0.0,
        kept_s: float | None = None,
    ) -> Trial | None:
        """Its trial, where there is time for it and for what must follow. Where it takes longer than it
        should, it is ended so that `kept_s` is left, by default all of `then_s`."""
        candidate = pull(lever, base)
        names = " + ".join(each.name for each in on.levers) if on is not None else ""
        what = f"screening {lever.name}" + (f" on {names}" if names else "")
        hopeless = self._bench.tries.hopeless(base, candidate)
        if hopeless is not None:
            trial = refused(lever, base, candidate, self._bench.environment_key, hopeless)
            self._ledger.add(trial)
            return trial
        cost_s = self._bench.screen_s(base, candidate)
        if not self._ledger.affords(
            cost_s, what, lever.name, base, screened_on=names, then_s=then_s
        ):
            return None
        try:
            with self._ledger.keeping(then_s if kept_s is None else kept_s):
                trial = self._bench.tries.screen(lever, base, candidate)
        except OutOfTimeError:
            self._ledger.skip(Undone(what, lever.name, base, screened_on=names, cost_s=cost_s))
            return None
        self._ledger.add(trial)
        self._outlook.saw(lever, trial)
        return trial
