"""A run ends within its budget however slow its machine is, and says what it left undone."""

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from peakward.records.errors import OutOfTimeError, PeakwardError
from peakward.report import markdown
from peakward.report.run import document
from peakward.report.run.investigation import read
from peakward.report.run.warnings import warnings
from peakward.tune.ledger import Budget

from .known_device import Device, run

LEVERS = ("bf16", "sdpa", "cuda-graphs", "fused-optimizer")


class Slow(Device):
    """Everything takes as long as `takes_s` says, by its own clock, and is ended when no time is left for
    it, as workers end it. What it says of its own times is 1 s, so that every estimate is wrong."""

    def __init__(self, studies, step_s, takes_s):
        super().__init__(studies, step_s)
        self.takes_s, self.now_s = takes_s, 0.0
        self.left_s = lambda: 1e9

    def spend(self, what, n=1):
        left_s, cost_s = self.left_s(), n * self.takes_s.get(what, 1.0)
        if cost_s > left_s:
            self.now_s += max(left_s, 0.0)
            raise OutOfTimeError("its time in the budget ended while timing")
        self.now_s += cost_s

    def measure(self, case, protocol):
        if (case, protocol) not in self.measured:
            best = self.measured and protocol.phases
            self.spend("best" if best else "measure" if protocol.phases else "screen")
        return super().measure(case, protocol)

    def turns(self, cases, protocol):
        self.spend("turns", len(cases))
        return super().turns(cases, protocol)

    def numerics(self, claims):
        self.spend("check")
        return super().numerics(claims)

    def profile(self, case, *where, n_steps=None, timeout_s=None):
        if n_steps is not None:
            self.spend("profile")
        return super().profile(case, *where, n_steps=n_steps, timeout_s=timeout_s)


def additive(case):
    settings = case.configuration
    step_s = 0.4 if settings.precision == "bf16" else 1.0
    return (
        step_s
        - 0.1 * (settings.attention == "sdpa")
        - 0.08 * settings.cuda_graphs
        - 0.04 * (settings.optimizer == "adamw-fused")
    )


def investigated(studies, total_s, step_s=additive, **takes_s):
    device = Slow(studies, step_s, takes_s)
    return device, run(device, *LEVERS, budget=Budget(total_s, clock=lambda: device.now_s))


costs = st.floats(0.01, 60.0)


@settings(max_examples=20, phases=(Phase.explicit, Phase.generate))
@given(st.floats(61, 600), costs, costs, costs, costs, costs)
def test_a_run_never_outlasts_its_budget(studies, total_s, screen, check, turns, profile, best):
    device, study = investigated(
        studies, total_s, screen=screen, check=check, turns=turns, profile=profile, best=best
    )
    assert device.now_s <= total_s + 1e-6
    assert study.complete == (study.unfinished is None)
    text = markdown.render(document(study))
    assert ("The budget of" in text) == (study.unfinished is not None)


def test_what_is_quick_is_done_as_if_there_were_no_end(studies):
    _, study = investigated(studies, 600.0)
    assert study.unfinished is None
    assert {name for step in read(study).steps for name in step.levers} == set(LEVERS)


def test_a_screening_that_cannot_end_is_ended_and_its_lever_left(studies):
    _, study = investigated(studies, 60.0, screen=1000.0)
    assert study.trials == ()
    assert set(study.unfinished.levers) == set(LEVERS)
    assert study.unfinished.budget_s == 60.0
    assert study.unfinished.short_s > 0
    assert len(study.measurements) == 1


def test_a_proof_that_cannot_end_keeps_nothing_and_says_what_is_not_confirmed(studies):
    device, study = investigated(studies, 200.0, turns=500.0)
    assert read(study).best is None
    sure = {"bf16", "sdpa", "fused-optimizer"}
    assert set(study.unfinished.unconfirmed) >= sure
    screened = {name for each in study.trials if each.stage == "screened" for name in each.levers}
    assert screened >= sure, "what was seen of them stays"
    assert device.now_s <= 200.0


def test_what_three_processes_gave_stands_where_the_time_for_more_ends(studies):
    """The three cannot tell, and the two more that are begun take longer than there is time for."""

    class Noisy(Slow):
        def turn_s(self, case):
            noise = (0.5, 2.0, 1.0)[self.n_processes % 3]
            return self.step_s(case) * (noise if case.configuration.precision == "bf16" else 1.0)

        def turns(self, cases, protocol):
            if self.n_processes >= 3:
                self.takes_s = {"turns": 1e6}
            return super().turns(cases, protocol)

    device = Noisy(studies, lambda case: 0.9 if case.configuration.precision == "bf16" else 1.0, {})
    study = run(device, "bf16", budget=Budget(300.0, clock=lambda: device.now_s))
    (trial,) = (each for each in study.trials if each.stage == "confirmed")
    assert len(trial.pairs) == 3
    assert trial.verdict == "inconclusive"


def test_the_best_is_shown_though_it_was_not_measured_by_itself(studies):
    _, study = investigated(studies, 200.0, best=500.0)
    found = read(study)
    assert {name for step in found.steps for name in step.levers} == set(LEVERS)
    assert found.best.measurement is None
    assert study.unfinished is not None


def test_numbers_that_could_not_be_checked_in_time_keep_a_lever_out(studies):
    _, study = investigated(studies, 100.0, check=500.0)
    assert read(study).best is None
    assert any("its time in the budget ended" in trial.reason for trial in study.trials)


def test_a_baseline_that_takes_longer_is_refused_with_what_to_do(studies):
    with pytest.raises(PeakwardError, match="give a larger one, or a smaller case") as refused:
        investigated(studies, 62.0, measure=70.0)
    assert str(refused.value).startswith(
        "expected a budget in which the baseline can be measured, got 1 min 02 s: its time"
    )
    assert refused.value.exit_code == 2


def test_a_baseline_has_a_minute_however_small_the_budget(studies):
    device, study = investigated(studies, 2.0, measure=50.0)
    assert len(study.measurements) == 1
    assert device.now_s == 50.0
    assert study.unfinished.levers


def test_a_profile_takes_no_more_than_half_of_the_budget_from_the_search(studies):
    _, study = investigated(studies, 100.0, profile=1000.0)
    assert any("Not profiled" in note for note in study.notes)
    assert read(study).best is not None


def test_the_report_says_by_how_much_it_was_short_and_how_to_go_on(studies):
    _, study = investigated(studies, 60.0, screen=1000.0)
    study = msgspec.structs.replace(
        study,
        command="peakward run --model 2.7B --budget 60s --db here.db",
        unfinished=msgspec.structs.replace(study.unfinished, short_s=150.0),
    )
    assert warnings(study, read(study))[-1] == (
        f"The budget of 1 min 00 s was too short to try all levers ({', '.join(study.unfinished.levers)} "
        "left). What is left takes about 2 min 30 s. Continue: "
        "`peakward run --model 2.7B --db here.db --budget 5m`."
    )


def test_a_call_from_python_is_told_by_its_budget_whatever_it_names_it(studies):
    _, study = investigated(studies, 60.0, screen=1000.0)
    study = msgspec.structs.replace(
        study,
        command="# from Python: pw.run of a live Model",
        unfinished=msgspec.structs.replace(study.unfinished, short_s=20.0),
    )
    assert warnings(study, read(study))[-1].endswith(
        "Continue: the same call with a budget of 90 s."
    )
