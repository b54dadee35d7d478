"""Composes levers greedily by screening them, one on top of another.

Screening judges a lever by one short measurement of each arm: enough to drop it, not to keep it.
"""

from collections.abc import Sequence
from math import inf, log

from peakward.levers.catalogue import pull
from peakward.records.case import LeverCase
from peakward.records.lever import Lever, Trial
from peakward.stats.pairs import LEAST_GAIN
from peakward.tune.bench import Bench
from peakward.tune.costs import LEAST_PROCESSES, N_PROCESSES
from peakward.tune.lever_stack import LeverStack
from peakward.tune.outlook import Outlook, is_given, rivals_of
from peakward.tune.screening import Screening
from peakward.tune.trials import promising, refused, rescues
from peakward.tune.whole import AtOnce, is_of_memory

HOPEFUL = 1.0
"""A lever that is expected to leave less than this share of what is sought is tried before the proof."""
SPARE = 3
"""A composition that was tried whole is proved step by step where there is this many times the time for it,
else as one step: with seven levers of nanoGPT's model (H200) steps take 160 s, and one 50."""


class Search:
    """Finds a lever stack by screening. It keeps nothing; `proof.Proof` does that."""

    def __init__(self, bench: Bench, outlook: Outlook, *, seeks_memory: bool = False) -> None:
        self._bench, self._ledger, self._outlook = bench, bench.ledger, outlook
        self._seeks_memory = seeks_memory
        self._screening = Screening(bench, outlook)
        self._at_once = AtOnce(outlook, self._screening)
        self._n_processes = N_PROCESSES
        """The processes of the proof that a screening leaves the time for."""
        self._one_alone = False
        """Whether the time is for one lever that gains."""
        self._wrong: set[str] = set()
        """Levers whose numbers do not hold."""
        self._tried: set[tuple[str, LeverCase]] = set()
        """Levers, each with a composition on which its turn has come."""

    def compose(
        self,
        base: LeverCase,
        levers: Sequence[Lever],
        *,
        base_runs: bool,
        n_processes: int = N_PROCESSES,
    ) -> LeverStack:
        """The levers that gained, each when screened on top of those before it, with sound numbers.

        Levers that are sure to gain are screened together, and nothing else is before they are proved: as one
        step, unless there is much time. Levers that are expected to gain nothing wait for `go_on`. Where
        numbers do not hold, the search is made again without the lever. What is screened leaves the time for
        a proof in `n_processes`.
        """
        self._n_processes, self._one_alone = n_processes, n_processes < N_PROCESSES
        self._tried.clear()
        if base_runs and not self._seeks_memory:
            whole = self._at_once.found(base, levers)
            if whole is not None:
                in_steps_s = self._bench.proof_s(whole)
                return whole if self._ledger.allows(SPARE * in_steps_s) else whole.as_one(0)
        return self._sound(LeverStack(base=base), levers, HOPEFUL, base_runs=base_runs)

    def go_on(self, proved: LeverStack, levers: Sequence[Lever], *, base_runs: bool) -> LeverStack:
        """A proved stack with what gains on top of it, tried in spite of what was expected: what hides behind
        one bottleneck shows once it is gone (a launch-bound step gains nothing from CUDA graphs while its
        matmuls are slow)."""
        self._n_processes, self._one_alone = LEAST_PROCESSES, False
        return self._sound(proved, levers, inf, base_runs=base_runs)

    def _sound(
        self, start: LeverStack, levers: Sequence[Lever], most: float, *, base_runs: bool
    ) -> LeverStack:
        while True:
            stack = self._climb(start, levers, most, base_runs=base_runs)
            in_time = self._ledger.allows(self._bench.proof_s(stack))
            wrong = self._wrong_in(stack if in_time else self._bench.as_one(stack))
            if wrong is None:
                return stack
            self._wrong.add(wrong.name)
            self._tried.clear()
            self._outlook.forget_rivals(wrong)

    def _wrong_in(self, stack: LeverStack) -> Lever | None:
        """The lowest lever whose numbers do not hold; levers that are one step are taken apart for that."""
        self._bench.checked(stack.claims)
        for lever, below, _ in stack.steps:
            if not self._bench.holds(lever, below):
                return lever if stack == stack.apart else self._wrong_in(stack.apart)
        return None

    def alone(self, base: LeverCase, levers: Sequence[Lever]) -> None:
        """Screen on the base what was not yet, as far as there is time to confirm it, and note what cannot
        apply to it nor ever could."""
        for lever in levers:
            candidate = pull(lever, base)
            if candidate == base or self._ledger.known(lever.name, base) is not None:
                continue
            reason = self._bench.obstacle(lever, base)
            if reason is None and is_given(lever, base) and self._outlook.alone(lever, base) > 1:
                reason = "is expected to be slower than what the step was given in its place"
            if reason is None:
                then_s = self._bench.proof_s(LeverStack(base=base, levers=(lever,)))
                self._screening.screened(lever, base, then_s=then_s)
            elif not any(trial.lever == lever.name for trial in self._ledger.trials):
                key = self._bench.environment_key
                self._ledger.add(refused(lever, base, candidate, key, reason))

    def _climb(
        self, stack: LeverStack, levers: Sequence[Lever], most: float, *, base_runs: bool
    ) -> LeverStack:
        """Screens on top of the stack, and goes on from there, whichever lever is expected to gain most for
        its time, until none is left that is expected to leave less than `most` of the step; until one gained,
        where there is time for the fewest processes alone."""
        while (lever := self._next(stack, levers, most, base_runs=base_runs)) is not None:
            if stack.levers and self._one_alone:
                break
            self._tried.add((lever.name, stack.top))
            trial = self._screening.on_top(lever, stack, self._n_processes)
            if trial is not None and (
                rescues(trial) or promising(trial) or self._carries(trial, stack, levers)
            ):
                higher = self._with(lever, stack, base_runs=base_runs)
                if trial.ratio is not None:
                    for gone in set(stack.levers) - set(higher.levers):
                        self._outlook.saw_worse(gone, trial.base, 1 / trial.ratio.estimate)
                stack = higher
        return stack

    def _carries(self, trial: Trial, stack: LeverStack, levers: Sequence[Lever]) -> bool:
        """Whether it is a graph that costs nothing, where levers wait for one to be judged on it."""
        with_graph = trial.candidate.configuration.cuda_graphs
        if stack.top.configuration.cuda_graphs or not with_graph or trial.ratio is None:
            return False
        waiting = (self._outlook.waits_for_a_graph(each, stack.top) for each in levers)
        return trial.ratio.estimate <= 1 + LEAST_GAIN and any(waiting)

    def _next(
        self, stack: LeverStack, levers: Sequence[Lever], most: float, *, base_runs: bool
    ) -> Lever | None:
        """A lever that saves memory is left out, unless memory is sought, or the base does not run and the
        lever makes it run. So is one that is expected to be slower than what the stack has on its axis: of
        12 screenings of other precisions on `small` (H200) after bf16 was kept, none gained. What the base
        was given counts as kept: of Llama-1B's 150 s, from bf16, 15 went to tf32 and both mixed precisions.

        In the catalogue's order a search of 125 s put tf32, 1.07× in a noisy screening, under a decode step
        of `2.7B` in bf16, and had no time left for CUDA graphs, predicted 2.78× and worth 5.26×. What
        compiles is dear, and came last until a search of four minutes on nanoGPT's model never reached it.
        """
        top = stack.top
        found: dict[Lever, float] = {}
        for lever in levers:
            idle = is_of_memory(lever) and (base_runs or bool(stack.levers))
            if (
                (idle and not self._seeks_memory)
                or lever in stack.apart.levers
                or lever.name in self._wrong | self._at_once.failed
                or (lever.name, top) in self._tried
            ):
                continue
            expected = self._outlook.expected(lever, stack)
            rivals = rivals_of(lever, stack) or is_given(lever, stack.base)
            worse = rivals and expected > 1 and (most < inf or self._outlook.is_known(lever, stack))
            if expected < most and not worse:
                found[lever] = log(expected) / self._bench.screen_s(top, pull(lever, top))
        best = min(found, key=lambda each: found[each], default=None)
        graph = next((each for each in found if dict(each.sets).get("cuda_graphs")), None)
        waits = best is not None and graph and self._outlook.waits_for_a_graph(best, top)
        return graph if waits else best

    def _with(self, lever: Lever, stack: LeverStack, *, base_runs: bool) -> LeverStack:
        """The stack with the lever, in the place of what it replaces if all steps can stand so.

        Where the base does not run, what stands on it must have been seen to.
        """
        higher = stack.in_place(lever)
        if not self._bench.stands(higher):
            higher = stack.on_top(lever)
        if base_runs or self._rescued(higher.levers[0], stack.base):
            return higher
        return stack

    def _rescued(self, foot: Lever, base: LeverCase) -> bool:
        trial = self._ledger.known(foot.name, base) or self._screening.screened(foot, base)
        return trial is not None and rescues(trial)
