"""Shows which steps of a lever stack hold: their numbers, then all of them timed in the same processes."""

from collections.abc import Mapping, Sequence

import msgspec

from peakward.levers import catalogue
from peakward.records.case import LeverCase
from peakward.records.errors import OutOfTimeError
from peakward.records.lever import Lever, Trial
from peakward.stats.pairs import LEAST_GAIN
from peakward.tune import trials
from peakward.tune.bench import COMPOSITION, Bench
from peakward.tune.costs import HEADLINE, LEAST_PROCESSES, N_MORE_PROCESSES, N_PROCESSES
from peakward.tune.ledger import Undone
from peakward.tune.lever_stack import LeverStack, ProvedStack, claim, parts, together
from peakward.tune.trials import Comparison, promising


class Proof:
    """Proves lever stacks, and levers each on its own."""

    def __init__(self, bench: Bench, *, base_runs: bool) -> None:
        self._bench, self._ledger = bench, bench.ledger
        self._n_untimed = 0 if base_runs else 1

    def prove(self, stack: LeverStack) -> LeverStack:
        """The stack up to the highest step that was confirmed, as was the whole up to there.

        A step that was not comes back once at the top, where what hid its gain (another bottleneck,
        a host whose launches differ from process to process) may be gone. If all is slower so, or
        there is no time, the first stack stands. Nothing stands on a step that was rejected; one
        that the intervals could not settle stays among others that hold, for the whole is proved
        with it, and its trial says what it is. Last, the numbers of the whole are held to the base's.
        """
        stack = self._sound(self._affordable(stack))
        if not stack.levers:
            return stack
        if self._n_untimed:
            self._keep_lowest(stack)
        proved = self._proved(stack)
        again = self._next(proved)
        if again.levers != proved.held.levers and self._worth_another(again):
            proved = self._better(proved, self._proved(again))
        self._enter(proved)
        return self._whole(proved)

    def prove_alone(self, base: LeverCase) -> LeverStack:
        """Levers that look faster on the base and are no step on it: each against the base.

        Returns:
            A stack of the one of them that gains most, of those that were kept.
        """
        worthy = sorted(
            (
                trial
                for trial in self._ledger.trials
                if trial.base == base
                and trial.stage == "screened"
                and promising(trial)
                and len(trial.levers) == 1
            ),
            key=_ratio,
        )
        kept: list[Trial] = []
        while worthy:
            while worthy and not self._ledger.allows(self._alone_s(base, worthy)):
                last = worthy.pop()
                name, candidate = last.lever, last.candidate
                what, cost_s = f"confirming {name} alone", self._bench.turns_s((candidate,))
                self._ledger.skip(Undone(what, name, base, confirming=True, cost_s=cost_s))
            made = self._confirmed_alone(base, worthy)
            failed = {trial.lever for trial in made if trial.status != "ok"}
            kept += [trial for trial in made if trial.verdict == "kept"]
            untimed = {trial.lever for trial in made if trial.time_ratio is None}
            worthy = [each for each in worthy if each.lever in untimed - failed] if failed else []
        best = min(kept, key=_ratio, default=None)
        return LeverStack(base=base, levers=(catalogue.lever(best.lever),) if best else ())

    def _confirmed_alone(self, base: LeverCase, worthy: Sequence[Trial]) -> tuple[Trial, ...]:
        steps = [(catalogue.lever(each.lever), base, each.candidate) for each in worthy]
        self._bench.checked([claim(*step) for step in steps])
        sound = [self._compared(*step) for step in steps if self._bench.holds(step[0], base)]
        if not sound:
            return ()
        self._ledger.announce("confirming levers alone")
        made = self._confirm((base, *(each.candidate for each in sound)), sound)
        self._enter_all(made)
        return made

    def _sound(self, stack: LeverStack) -> LeverStack:
        """Without the levers whose numbers do not hold where they stand; levers that are tried together are
        taken apart for that."""
        self._bench.checked(stack.claims)
        for lever, base, _ in stack.steps:
            if not self._bench.holds(lever, base):
                apart = stack.apart
                return self._sound(apart if apart != stack else stack.without({lever.name}))
        return stack

    def _affordable(self, stack: LeverStack) -> LeverStack:
        """The stack as far as there is time to prove it: each step by itself; else what is not proved yet as
        one step, at least in as many processes as are judged; else without its highest steps.

        What is kept back for the profiles that would explain it is given up before a step is, and after
        that what is kept back to measure the best.
        """
        while stack.levers:
            for option, n_processes in self._ways(stack):
                if self._ledger.allows(self._bench.proof_s(option, n_processes)):
                    return option
            if self._ledger.reserve_s:
                best_s = self._bench.turns_s((stack.top,), 1) + HEADLINE.max_timed_s
                self._ledger.reserve_s = best_s if self._ledger.reserve_s > best_s else 0.0
                continue
            if self._ledger.allows(self._bench.proof_s(self._bench.as_one(stack), 1)):
                # Estimates err: rather a proof that is ended than none.
                return self._bench.as_one(stack, self._n_untimed)
            lever, below, top = stack.steps[-1]
            what, cost_s = f"confirming {lever.name}", self._bench.turns_s((top,))
            self._ledger.skip(Undone(what, lever.name, below, confirming=True, cost_s=cost_s))
            stack = stack.first(len(stack.levers) - 1)
        return stack

    def _ways(self, stack: LeverStack) -> tuple[tuple[LeverStack, int], ...]:
        """The ways to prove the stack, the one that tells most first, each with its number of processes."""
        as_one = self._bench.as_one(stack, self._n_untimed)
        return (stack, N_PROCESSES), (as_one, N_PROCESSES), (as_one, LEAST_PROCESSES)

    def _proved(self, stack: LeverStack) -> ProvedStack:
        """Its steps and compositions, each settled before or confirmed now."""
        asked = self._bench.unsettled(stack, self._n_untimed)
        made: dict[tuple[str, LeverCase, LeverCase], Trial] = {}
        if asked:
            names = " + ".join(each.name for each in stack.levers)
            self._ledger.announce(f"confirming {names}")
            comparisons = [
                each
                if each.name == COMPOSITION
                else self._compared(together(parts(each.name)), each.base, each.candidate)
                for each in asked
            ]
            timed = {case for each in asked for case in (each.base, each.candidate)}
            trials = self._confirm([case for case in stack.cases if case in timed], comparisons)
            made = {each.key: trial for each, trial in zip(comparisons, trials, strict=True)}
        cases = stack.cases[self._n_untimed :]
        steps = [(each.name, below, top) for each, below, top in stack.steps[self._n_untimed :]]
        wholes = [(COMPOSITION, cases[0], top) for top in cases[2:]]
        proved = ProvedStack(
            stack,
            tuple(self._trial(key, made) for key in steps),
            tuple(self._trial(key, made) for key in wholes),
        )
        self._enter(proved)
        return proved

    def _trial(
        self,
        key: tuple[str, LeverCase, LeverCase],
        made: Mapping[tuple[str, LeverCase, LeverCase], Trial],
    ) -> Trial:
        trial = made.get(key) or self._ledger.settled(*key)
        assert trial is not None
        return trial

    def _better(self, first: ProvedStack, second: ProvedStack) -> ProvedStack:
        """The second, unless it failed or the first gains on it what is worth having."""
        failed = any(trial.time_ratio is None for trial in second.steps)
        gained = first.ratio <= second.ratio * (1 - LEAST_GAIN)
        return first if failed or gained else second

    def _keep_lowest(self, stack: LeverStack) -> None:
        lever, base, _ = stack.steps[0]
        trial = self._ledger.known(lever.name, base)
        if trial is not None:
            self._ledger.add(msgspec.structs.replace(trial, verdict="kept"))

    def _next(self, proved: ProvedStack) -> LeverStack:
        """The mended stack; where only that has time, the stack without the steps that did not hold.

        On two cores sdpa fell and the fused optimiser above it held. The whole came first again, for which
        29 s of the budget were too few, and the run kept nothing.
        """
        mended, rest = proved.mended, proved.rest
        return (
            mended if not rest.levers or self._ledger.allows(self._bench.proof_s(mended)) else rest
        )

    def _worth_another(self, stack: LeverStack) -> bool:
        """Whether the mended stack can be pulled, there is time to prove it and its numbers hold."""
        if any(trial.interrupted for trial in self._ledger.trials):
            return False
        if not stack.levers or not self._bench.stands(stack):
            return False
        if not self._ledger.affords(self._bench.proof_s(stack), "confirming the composition again"):
            return False
        return self._sound(stack).levers == stack.levers

    def _whole(self, proved: ProvedStack) -> LeverStack:
        """The held stack whose top's numbers hold against the base itself, under the weakest class of
        its levers: each lever was held to the step below it, so errors could add up."""
        stack = proved.held
        timed = {trial.candidate: trial for trial in proved.wholes}
        while len(stack.levers) > 1:
            (numerics,) = self._bench.checked(stack.claims[-1:])
            trial = timed.get(stack.top)
            if trial is not None:
                sound = numerics.verdict == "holds"
                checked = msgspec.structs.replace(trial, numerics=numerics)
                self._ledger.add(checked if sound else trials.misjudged(trial, numerics))
            if numerics.verdict != "violated":
                break
            stack = stack.first(len(stack.levers) - 1)
        return stack

    def _alone_s(self, base: LeverCase, screened: Sequence[Trial]) -> float:
        claims = [claim(catalogue.lever(each.lever), base, each.candidate) for each in screened]
        cases = (base, *(each.candidate for each in screened))
        return self._bench.checks_s(claims) + self._bench.turns_s(cases)

    def _compared(self, lever: Lever, base: LeverCase, candidate: LeverCase) -> Comparison:
        (numerics,) = self._bench.checked((claim(lever, base, candidate),))
        return Comparison(lever.name, base, candidate, numerics)

    def _confirm(
        self, cases: Sequence[LeverCase], comparisons: Sequence[Comparison]
    ) -> tuple[Trial, ...]:
        """Trials without a ratio where the time ended first."""
        more_s = self._bench.turns_s(cases, N_MORE_PROCESSES)
        try:
            return self._bench.tries.confirm(
                cases, comparisons, affords_more=lambda: self._ledger.allows(more_s)
            )
        except OutOfTimeError as error:
            each_s = self._bench.turns_s(cases) / len(comparisons)
            for name, base, _, _ in comparisons:
                lever = None if name == COMPOSITION else name
                what = f"confirming {name}"
                self._ledger.skip(Undone(what, lever, base, confirming=True, cost_s=each_s))
            key = self._bench.environment_key
            return tuple(trials.untimed(each, key, str(error)) for each in comparisons)

    def _enter(self, proved: ProvedStack) -> None:
        self._enter_all(proved.steps)

    def _enter_all(self, made: Sequence[Trial]) -> None:
        """But for those that were not timed because another case failed: they say nothing."""
        for trial in made:
            if trial.time_ratio is not None or trial.status != "ok":
                self._ledger.add(trial)


def _ratio(trial: Trial) -> float:
    return trial.ratio.estimate if trial.ratio else 1.0
