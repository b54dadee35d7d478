"""Confirmations over workers whose answers are given."""

import math
import random
from types import SimpleNamespace

import msgspec
import pytest

from peakward.lab.measure.messages import Turn, TurnsTimed
from peakward.levers.catalogue import lever, pull
from peakward.records.errors import OutOfTimeError
from peakward.records.lever import Bound, Foretold
from peakward.records.measurement import Interval
from peakward.tune.costs import AGAIN
from peakward.tune.investigation import Aim
from peakward.tune.laboratory import Laboratory
from peakward.tune.trials import Comparison

from .world import BASE

SDPA = pull(lever("sdpa"), BASE)
BF16 = pull(lever("bf16"), SDPA)
CASES = (BASE, SDPA, BF16)
RUNGS = (Comparison("sdpa", BASE, SDPA, None), Comparison("bf16", SDPA, BF16, None))
DEAD = "died"
LATE = object()
"""A process in which the time ends."""
FORETOLD = Foretold(time_ratio=Interval(estimate=0.7, low=0.6, high=0.9, level=0.9))


class Device:
    """A sweep, its workers, its store and what it expects in one. A process is a median for each case."""

    rounds = "processes"

    def __init__(self, *processes):
        self.processes = list(processes)
        self.environment = SimpleNamespace(key="here")
        self.workers = self
        self.asked, self.stored, self.told, self.least = [], [], [], None
        self.prepared = []

    def close(self):
        self.asked.append("|")

    def prepare(self, n):
        self.prepared.append(n)

    def turns(self, cases, protocol):
        self.asked.append(cases)
        medians = self.processes.pop(0)
        if medians is LATE:
            raise OutOfTimeError("its time in the budget ended while timing")
        for i, case in enumerate(cases):
            if medians[case] == DEAD:
                return TurnsTimed(status="crashed", reason="killed", failed=i)
        return TurnsTimed(turns=tuple(Turn(median_s=medians[c], peak_bytes=9) for c in cases))

    def trial(self, name, base, candidate, key):
        wanted = name, base, candidate
        return next(
            (each for each in self.stored if (each.lever, each.base, each.candidate) == wanted),
            None,
        )

    def foretold(self, base, candidate):
        assert (base, candidate) not in {(e.base, e.candidate) for e in self.stored}
        self.told.append((base, candidate, len(self.asked)))
        return FORETOLD

    def bound(self, base, candidate, base_s):
        return None if self.least is None else Bound(least_time_ratio=self.least, basis="floor")

    def add_trial(self, trial):
        self.stored.append(trial)


def process(base=1.0, sdpa=0.8, bf16=0.4):
    return {BASE: base, SDPA: sdpa, BF16: bf16}


NOISY = (process(1.0, 0.8, 0.4), process(1.02, 0.8, 0.41), process(0.99, 0.8, 0.395))
"""Of which two leave a doubt, at 99%, that three do not."""


def confirmed(*processes, comparisons=RUNGS, affords_more=lambda: True, least=None):
    device = Device(*processes)
    device.least = least
    laboratory = Laboratory(device, device, device, Aim())
    return device, laboratory.confirm(CASES, comparisons, affords_more=affords_more)


def test_all_cases_are_timed_in_each_of_three_processes_every_second_backwards():
    device, trials = confirmed(*NOISY)
    backwards = tuple(reversed(CASES))
    assert device.asked == ["|", CASES, "|", backwards, "|", CASES]
    assert device.prepared == [3], "their processes start at once"
    assert [trial.verdict for trial in trials] == ["kept", "kept"]
    assert [trial.time_ratio.estimate for trial in trials] == pytest.approx([0.8, 0.5], rel=0.01)
    assert [pair.process for pair in trials[0].pairs] == [0, 1, 2]
    assert device.stored == list(trials)


def test_a_gain_that_two_processes_leave_no_doubt_of_takes_no_third():
    device, (sdpa, bf16) = confirmed(process(1.0, 0.5, 0.1), process(1.005, 0.5, 0.101))
    assert (sdpa.verdict, bf16.verdict) == ("kept", "kept")
    assert len(sdpa.pairs) == 2
    assert device.stored == [sdpa, bf16]


def test_the_whole_is_the_product_of_its_rungs():
    whole = Comparison("composition", BASE, BF16, None)
    noisy = (process(1.0, 0.8, 0.4), process(1.1, 0.85, 0.5), process(0.9, 0.8, 0.39))
    _, (sdpa, bf16, both) = confirmed(*noisy, comparisons=(*RUNGS, whole))
    product = sdpa.time_ratio.estimate * bf16.time_ratio.estimate
    assert both.time_ratio.estimate == pytest.approx(product)


def test_a_loss_is_rejected_with_its_interval():
    _, (sdpa, _) = confirmed(process(sdpa=1.2), process(sdpa=1.21), process(sdpa=1.19))
    assert sdpa.verdict == "rejected"
    assert sdpa.time_ratio.low > 1


def test_what_drifts_while_a_process_lives_is_no_gain():
    """Each case is 2% slower than the one before it, and none is faster than another."""
    first, then = process(1.0, 1.02, 1.04), process(1.04, 1.02, 1.0)
    _, trials = confirmed(first, then, first, then, first)
    assert all(trial.time_ratio.low < 1 < trial.time_ratio.high for trial in trials)


def test_what_three_processes_cannot_tell_gets_two_more():
    device, (sdpa, _) = confirmed(*(process(sdpa=each) for each in (0.8, 1.2, 0.9, 0.8, 1.2)))
    assert {pair.process for pair in sdpa.pairs} == set(range(5))
    assert sdpa.verdict == "inconclusive"
    assert sdpa in device.stored, "no more would be taken"


def test_where_the_time_ends_in_the_third_process_two_are_judged():
    _, (sdpa, bf16) = confirmed(process(), process(), LATE)
    assert (sdpa.verdict, bf16.verdict) == ("kept", "kept")
    assert len(sdpa.pairs) == 2


def test_two_processes_that_differ_settle_nothing():
    device, (sdpa, _) = confirmed(process(sdpa=0.8), process(sdpa=0.9), LATE)
    assert sdpa.verdict == "inconclusive"
    assert sdpa not in device.stored


def test_one_process_is_judged_by_nobody():
    with pytest.raises(OutOfTimeError):
        confirmed(process(), LATE)


def test_where_the_time_ends_in_the_fourth_process_three_are_judged():
    device, (sdpa, _) = confirmed(*(process(sdpa=each) for each in (0.8, 1.2, 0.9)), LATE)
    assert len(sdpa.pairs) == 3
    assert sdpa not in device.stored


def test_without_time_for_more_what_is_inconclusive_is_left_unstored():
    processes = [process(sdpa=each, bf16=each / 2) for each in (0.8, 1.2, 0.9)]
    device, (sdpa, bf16) = confirmed(*processes, affords_more=lambda: False)
    assert (sdpa.verdict, bf16.verdict) == ("inconclusive", "kept")
    assert len(sdpa.pairs) == 3
    assert device.stored == [bf16]


def test_processes_that_disagree_keep_nothing():
    """All gain 0.1 to 10%."""
    _, (sdpa, _) = confirmed(*(process(sdpa=each) for each in (0.90, 0.98, 0.90, 0.999, 0.98)))
    assert sdpa.verdict == "inconclusive"


def noisy(draw, gain):
    """4% noise between processes, 0.3% within one."""
    return process(sdpa=(1 - gain) * math.exp(draw.gauss(0, 0.04) + draw.gauss(0, 0.003)))


@pytest.mark.parametrize(("gain", "least", "most"), [(0.0, 0.0, 0.07), (0.1, 0.95, 1.0)])
def test_how_often_a_lever_is_kept_on_a_noisy_host(gain, least, most):
    """Expected 4.1% without effect and 99% with 10%; the margins are four standard deviations."""
    draw, n_trials = random.Random(7), 1000
    verdicts = [
        confirmed(*(noisy(draw, gain) for _ in range(5)), comparisons=RUNGS[:1])[1][0].verdict
        for _ in range(n_trials)
    ]
    assert least <= verdicts.count("kept") / n_trials <= most


def test_a_case_that_fails_ends_the_confirmation():
    device, (sdpa, bf16) = confirmed(process(), process(bf16=DEAD))
    assert (bf16.status, bf16.reason) == ("crashed", "killed")
    assert (sdpa.status, sdpa.verdict) == ("ok", "inconclusive"), "half of it confirms nothing"
    assert "a case timed with it failed: killed" in sdpa.reason
    assert device.stored == [], "another run tries again"


def test_a_base_that_fails_is_no_fault_of_its_lever():
    _, (sdpa, bf16) = confirmed(process(sdpa=DEAD))
    assert (sdpa.status, bf16.status) == ("crashed", "ok")
    assert "its base failed" in bf16.reason


def test_what_the_store_has_is_not_run_again():
    device, trials = confirmed(process(), process(), process())
    device.asked.clear()
    again = Laboratory(device, device, device, Aim()).confirm(
        CASES, RUNGS, affords_more=lambda: True
    )
    assert again == trials
    assert device.asked == []


def test_a_turn_is_reckoned_by_the_screening():
    device = Device()
    device.measurement = lambda case, protocol, key: SimpleNamespace(
        wall_s=10.0,
        runs=(),
        compile=SimpleNamespace(compile_s=9.0) if case == BF16 else None,
    )
    laboratory = Laboratory(device, device, device, Aim(), build_s=2.0)
    assert laboratory.seen_s(SDPA) == 2.0
    assert laboratory.seen_s(BF16) == pytest.approx(2.0 + AGAIN * 9.0)
    device.measurement = lambda case, protocol, key: None
    assert laboratory.seen_s(SDPA) is None


@pytest.mark.parametrize(("objective", "expected"), [("latency", 0.7), ("memory", 0.4)])
def test_what_is_sought_is_what_is_expected(objective, expected, monkeypatch):
    told = msgspec.structs.replace(FORETOLD, memory_ratio=0.4)
    monkeypatch.setattr(Device, "foretold", lambda self, base, candidate: told)
    device = Device()
    laboratory = Laboratory(device, device, device, Aim(objective=objective))
    assert laboratory.expected(BASE, SDPA) == expected


def test_a_verdict_says_what_its_rounds_were(monkeypatch):
    """Those of a live module are no processes."""
    monkeypatch.setattr(Device, "rounds", "rounds of one process")
    _, trials = confirmed(*NOISY)
    assert all("(a pair in each of 3 rounds of one process)" in each.reason for each in trials)


def test_what_is_foretold_is_written_down_before_anything_is_timed():
    device, trials = confirmed(process(), process(), process())
    assert device.told == [(BASE, SDPA, 0), (SDPA, BF16, 0)]
    assert [trial.foretold for trial in trials] == [FORETOLD] * 2


def test_a_gain_beyond_the_bound_is_repeated_and_then_called_our_error():
    device, (sdpa, bf16) = confirmed(*[process()] * 5, least=0.6)
    assert len(sdpa.pairs) == 5, "two more processes"
    assert (sdpa.verdict, sdpa.bound.broken) == ("kept", False)
    assert (bf16.verdict, bf16.bound.broken) == ("inconclusive", True)
    assert "an error of ours" in bf16.reason
    assert bf16 in device.stored


def test_a_gain_beyond_the_bound_that_does_not_stand_is_judged_by_all_pairs():
    _, (_, bf16) = confirmed(*[process()] * 3, *[process(bf16=0.72)] * 2, least=0.6)
    assert bf16.bound.broken is False
    assert "ours" not in bf16.reason


def test_without_time_to_repeat_it_a_gain_beyond_the_bound_is_not_settled():
    device, (sdpa, bf16) = confirmed(*[process()] * 3, affords_more=lambda: False, least=0.6)
    assert bf16.bound.broken
    assert device.stored == [sdpa]
