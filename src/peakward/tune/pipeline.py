"""The stages of an investigation, each with what it found."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from peakward.levers.attention import n_attentions
from peakward.records.case import LeverCase, ModelCase
from peakward.records.errors import OutOfTimeError
from peakward.records.lever import Lever
from peakward.records.measurement import Measurement
from peakward.tune import costs, guesses, larger_batches, profiles
from peakward.tune.bench import Bench
from peakward.tune.costs import HEADLINE, LEAST_PROCESSES, N_PROCESSES
from peakward.tune.diagnoses import diagnosed
from peakward.tune.forecasts import Expectations, Forecasts
from peakward.tune.investigation import Investigation
from peakward.tune.laboratory import Laboratory
from peakward.tune.ledger import Budget, Ledger, Listener, Undone
from peakward.tune.lever_stack import LeverStack
from peakward.tune.outlook import Outlook, bounds_of, bounds_of_waits, own_values
from peakward.tune.proof import Proof
from peakward.tune.search import Search

if TYPE_CHECKING:
    from peakward.lab.measure.sweep import Sweep
    from peakward.store.database import Store

MOST_RESERVED = 1 / 4
"""The share of the budget for what explains a result rather than finds it."""


class Pipeline:
    """Carries out the stages; whatever ends it, what was found until then stands.

    Args:
        baseline: measured, whatever became of it.
        floor_s: of the baseline; None where it is not known.
        started_s: of the baseline's measurement, for its process to start.
    """

    def __init__(
        self,
        asked: Investigation,
        baseline: Measurement,
        sweep: "Sweep",
        store: "Store",
        forecasts: Forecasts,
        *,
        floor_s: float | None,
        started_s: float,
        budget: Budget,
        on_stage: Listener,
    ) -> None:
        self.asked, self.forecasts, self.budget = asked, forecasts, budget
        self.measured = [baseline]
        """The baseline, then the best composition where one was held."""
        self.held = LeverStack(base=asked.case)
        """The lever stack that was kept."""
        self.explained = profiles.Profiles()
        self.guessed = guesses.Guessed()
        self.larger = larger_batches.Growth()
        self.stopped = False
        """By Ctrl-C."""
        self._sweep, self._on_stage = sweep, on_stage
        self._runs = baseline.status == "ok"
        self.ledger = Ledger(budget, reserve_s=0.0, announce=on_stage)
        self._profiler = profiles.Profiler(sweep.workers, store, sweep.environment.key)
        expected = Expectations(forecasts, self._profiler.known)
        learned = costs.learned(
            costs.guessed(asked.case, floor_s),
            baseline,
            n_at_once=sweep.workers.n_at_once,
            started_s=started_s,
        )
        graph = forecasts.graph(asked.case)
        n_layers = 0 if graph is None else n_attentions(graph)
        learned = replace(learned, whole_compile_s=n_layers * costs.LAYER_S or None)
        build_s = learned.build_s or 0.0
        laboratory = Laboratory(
            sweep, store, expected, asked.aim, build_s=build_s, real_model=asked.real_model
        )
        # Estimates are learned from one case, and may be far out: what overruns is ended.
        sweep.workers.left_s = self.ledger.left_s
        self._bench = Bench(laboratory, self.ledger, learned, self._forbids, sweep.environment.key)
        self._proof = Proof(self._bench, base_runs=self._runs)

    def carry_out(self) -> None:
        """All stages, as far as the budget goes."""
        try:
            if not self._is_sure():
                self._profile_the_baseline()
            self._compose()
            self._explain()
            if not self.explained.interrupted:
                self._guess()
                self._spend_the_rest()
        except KeyboardInterrupt:
            self.stopped = True

    def _is_sure(self) -> bool:
        """Whether a composition of levers that are sure to gain needs no profile, because the operators of a
        module say what its levers can be set for. The 20 s of one (H200) are then taken of what is left."""
        seen = self.forecasts.graph(self.asked.case) is not None
        return seen and self._runs and not self.asked.aim.seeks_memory

    def _forbids(self, lever: Lever, base: LeverCase) -> str | None:
        """Why the lever is not to be tried on the base, as far as it can be known without a trial."""
        return self.asked.forbids(lever, base) or self.forecasts.needless(lever, base)

    def _end_s(self) -> float:
        """For the best, measured as the baseline was but in a new process, and profiled in it."""
        case, baseline = self.asked.case, self.measured[0]
        wanted_s = baseline.wall_s + self._bench.costs.profile_s(case)
        return min(wanted_s, MOST_RESERVED / 2 * self.asked.budget_s)

    def _profile_the_baseline(self) -> None:
        """Before any lever: what the step spends is what the bounds of its levers rest on. Not where the
        profiler would stay attached to what is timed after it."""
        cost_s = self._bench.costs.profile_s(self.asked.case)
        apart = self._sweep.workers.profiles_apart
        if apart and cost_s <= MOST_RESERVED * self.asked.budget_s:
            if self._sweep.workers.n_at_once > 1:
                # The worker that is profiled times nothing more.
                self._sweep.workers.prepare(1)
            with self.ledger.keeping((1 - 2 * MOST_RESERVED) * self.asked.budget_s):
                self._explain()
        if self.explained.interrupted:
            raise KeyboardInterrupt

    def _explain(self) -> None:
        self.explained = profiles.affordable(
            self.measured,
            self._profiler,
            budget=self.budget,
            costs=self._bench.costs,
            on_stage=self._on_stage,
        )

    def _compose(self) -> None:
        """The composition that was found and held, and its measurement."""
        # What is sure goes before what would explain it.
        self.ledger.reserve_s = self._bench.costs.turn_s(self.asked.case)
        told = diagnosed(
            self.measured, profiles=self.explained.made, memory=(), forecasts=self.forecasts
        )
        own = own_values(told, self.forecasts.graph(self.asked.case))
        waits = bounds_of_waits(self.measured[0])
        outlook = Outlook(self._bench, bounds=bounds_of(told), waits=waits, own=own)
        self._search = Search(self._bench, outlook, seeks_memory=self.asked.aim.seeks_memory)
        self.held = self._proof.prove(self._composed(N_PROCESSES))
        if not self.held.levers and self.ledger.skipped:
            # Rather no profile of the best than no best.
            self.ledger.reserve_s = 0.0
            self.held = self._proof.prove(self._composed(LEAST_PROCESSES))
        self.ledger.reserve_s = self._end_s()
        higher = self._search.go_on(self.held, self.asked.levers, base_runs=self._runs)
        if higher.levers != self.held.levers:
            again = self._proof.prove(higher)
            if len(again.levers) >= len(self.held.levers):
                self.held = again
        self.ledger.reserve_s = 0.0
        if self.held.levers:
            self._measure_the_best()

    def _composed(self, n_processes: int) -> LeverStack:
        return self._search.compose(
            self.asked.case, self.asked.levers, base_runs=self._runs, n_processes=n_processes
        )

    def _guess(self) -> None:
        """Tokens of texts, on the best composition."""
        last = self.measured[-1]
        if last.case == self.held.top:
            self.guessed = guesses.guessed(
                self.asked.real_model, last, self._bench, self._sweep, HEADLINE
            )

    def _spend_the_rest(self) -> None:
        """On the levers alone, and on larger batches where throughput is sought."""
        case = self.asked.case
        self._search.alone(case, self.asked.levers)
        best_alone = self._proof.prove_alone(case) if self._runs else self.held
        if not self.held.levers and best_alone.levers:
            self.held = best_alone
            self._measure_the_best()
            self.guessed = guesses.Guessed()  # Those were of the baseline.
            self._guess()
        if self.asked.aim.objective == "throughput" and isinstance(self.held.top, ModelCase):
            self.larger = larger_batches.grown(
                self.held.top,
                self._bench,
                self._sweep,
                HEADLINE,
                here=self.forecasts.here,
                max_memory_bytes=self.asked.aim.max_memory_bytes,
            )

    def _measure_the_best(self) -> None:
        """In a process as young as the baseline's: after a dozen cases one measured 12.6 ms where fresh
        ones gave 8 to 9 (host-bound, H200 machine, 2026-11-21)."""
        what = "measuring the best composition"
        self._on_stage(what)
        self._sweep.workers.close()
        try:
            self.measured.append(self._sweep.measure(self.held.top, HEADLINE))
        except OutOfTimeError:
            self.ledger.skip(Undone(what, cost_s=self.measured[0].wall_s))
