"""Screening and confirmation over a sweep and workers whose answers are given."""

import math
import random
from types import SimpleNamespace

import msgspec
import pytest

from peakward.catalogue.levers import lever, pull
from peakward.records.case import ModelCase, Workload
from peakward.records.environment import Environment
from peakward.records.measurement import Interval, Measurement, Summary, Validity
from peakward.records.model_shape import ModelShape
from peakward.records.protocol import Protocol
from peakward.records.trial import Pair
from peakward.stats.pairs import ratio_interval
from peakward.tune.trials import Laboratory, interrupted, promising, rescues

SHAPE = ModelShape(
    name="t",
    vocab_size=100,
    n_layers=2,
    d_model=64,
    d_ff=128,
    n_heads=4,
    n_kv_heads=4,
    head_dim=16,
    max_seq_len=128,
)
BASE = ModelCase(model=SHAPE, workload=Workload(batch_size=2, seq_len=16), device="cpu")
SDPA = lever("sdpa")
HERE = Environment(
    device_type="cpu",
    device_name="x",
    device_memory_bytes=1,
    n_cores=2,
    python="3",
    system="Linux",
    peakward="0",
)


def measured(case, median_s, half_width_s, status="ok"):
    summary = Summary(
        median_s=Interval(
            estimate=median_s, low=median_s - half_width_s, high=median_s + half_width_s
        ),
        mean_s=median_s,
        sd_s=0.0,
        min_s=median_s,
        n=5,
    )
    return Measurement(
        id="m",
        case=case,
        protocol=Protocol(),
        environment=HERE,
        started_at="",
        wall_s=1.0,
        status=status,
        reason=None if status == "ok" else "needed 9 GiB",
        summary=summary if status == "ok" else None,
        validity=Validity(verdict="stable") if status == "ok" else None,
    )


class Bench:
    """A sweep, its workers and its store in one."""

    def __init__(self, base=None, candidate=None, outcomes=()):
        self._measured = {BASE: base, pull(SDPA, BASE): candidate}
        self._outcomes = list(outcomes)
        self.environment, self.orders, self.stored = HERE, [], []
        self.workers = self

    def measure(self, case, protocol):
        return self._measured[case]

    def pairs(self, base, candidate, order, protocol):
        self.orders.append(order)
        return self._outcomes.pop(0)

    def close(self):
        self.orders.append("|")

    def trial(self, name, base, candidate, key):
        return next((each for each in self.stored if each.lever == name), None)

    def add_trial(self, trial):
        self.stored.append(trial)


def screened(base, candidate):
    bench = Bench(base, candidate)
    return Laboratory(bench, bench).screen(SDPA, BASE, pull(SDPA, BASE))


def test_a_screened_ratio_is_as_wide_as_both_medians_allow():
    trial = screened(measured(BASE, 1.0, 0.1), measured(pull(SDPA, BASE), 0.5, 0.05))
    assert trial.time_ratio.estimate == 0.5
    assert trial.time_ratio.low == pytest.approx(0.45 / 1.1)
    assert trial.time_ratio.high == pytest.approx(0.55 / 0.9)
    assert trial.verdict == "inconclusive", "screening keeps nothing"
    assert promising(trial)


def test_a_slower_candidate_is_rejected_and_not_promising():
    trial = screened(measured(BASE, 1.0, 0.01), measured(pull(SDPA, BASE), 1.2, 0.01))
    assert trial.verdict == "rejected"
    assert not promising(trial)


def test_an_unsteady_arm_rejects_nothing():
    unsteady = msgspec.structs.replace(
        measured(pull(SDPA, BASE), 3.0, 0.01), validity=Validity(verdict="unstable")
    )
    assert screened(measured(BASE, 1.0, 0.01), unsteady).verdict == "inconclusive"


def test_a_candidate_that_does_not_run_keeps_its_status_and_reason():
    trial = screened(measured(BASE, 1.0, 0.1), measured(pull(SDPA, BASE), 1.0, 0, status="oom"))
    assert (trial.status, trial.verdict, trial.reason) == ("oom", "rejected", "needed 9 GiB")


def outcome(ratio, n, status="ok"):
    pairs = tuple(
        Pair(process=0, base_s=1.0, candidate_s=ratio + 0.001 * (i % 2)) for i in range(n)
    )
    return SimpleNamespace(
        pairs=pairs if status == "ok" else (),
        status=status,
        reason=None if status == "ok" else "killed",
        failed_arm=None if status == "ok" else "candidate",
        doubts=(),
        base_peak_bytes=2,
        candidate_peak_bytes=1,
    )


def confirmed(*outcomes, affords_more=lambda: True):
    bench = Bench(outcomes=outcomes)
    trial = Laboratory(bench, bench).confirm(
        "sdpa", BASE, pull(SDPA, BASE), None, affords_more=affords_more
    )
    return bench, trial


def test_a_gain_is_kept_after_two_pairs_in_each_of_three_processes():
    bench, trial = confirmed(*[outcome(0.8, 2)] * 3)
    assert (trial.verdict, trial.stage, len(trial.pairs)) == ("kept", "confirmed", 6)
    assert [pair.process for pair in trial.pairs] == [0, 0, 1, 1, 2, 2]
    assert bench.orders == ["ABBA", "|", "BAAB", "|", "ABBA"]
    assert bench.stored == [trial]


def test_a_loss_is_rejected_with_its_interval():
    _, trial = confirmed(*[outcome(1.2, 2)] * 3)
    assert trial.verdict == "rejected"
    assert trial.time_ratio.low > 1


def test_what_three_processes_cannot_tell_gets_two_more():
    ratios = (0.8, 1.2, 0.9, 0.8, 1.2)
    bench, trial = confirmed(*(outcome(ratio, 2) for ratio in ratios))
    assert [each for each in bench.orders if each != "|"] == [
        "ABBA",
        "BAAB",
        "ABBA",
        "BAAB",
        "ABBA",
    ]
    assert {pair.process for pair in trial.pairs} == set(range(5))
    assert trial.verdict == "inconclusive"


def test_without_time_for_more_three_processes_are_left_inconclusive_and_unstored():
    outcomes = [outcome(ratio, 2) for ratio in (0.8, 1.2, 0.9)]
    bench, trial = confirmed(*outcomes, affords_more=lambda: False)
    assert trial.verdict == "inconclusive"
    assert {pair.process for pair in trial.pairs} == set(range(3))
    assert bench.stored == []


def test_processes_that_disagree_keep_nothing_however_alike_their_pairs():
    """Ten pairs that all gain 2 to 10%: as if independent their interval would end below 1."""
    _, trial = confirmed(*(outcome(ratio, 2) for ratio in (0.90, 0.98, 0.90, 0.999, 0.98)))
    assert trial.verdict == "inconclusive"
    alone = [msgspec.structs.replace(pair, process=0) for pair in trial.pairs]
    assert ratio_interval(alone).high < 1 < trial.time_ratio.high


def noisy(draw: random.Random, gain: float):
    """A process's pairs: its own 4% noise on both, 0.3% on each."""
    centre = math.log(1 - gain) + draw.gauss(0, 0.04)
    pairs = tuple(
        Pair(process=0, base_s=1.0, candidate_s=math.exp(draw.gauss(centre, 0.003)))
        for _ in range(2)
    )
    return SimpleNamespace(**(vars(outcome(1.0, 2)) | {"pairs": pairs}))


@pytest.mark.parametrize(("gain", "least", "most"), [(0.0, 0.0, 0.07), (0.1, 0.95, 1.0)])
def test_how_often_a_lever_is_kept_on_a_noisy_host(gain, least, most):
    """Expected 4.4% without effect and 98% with 10%; the margins are four standard deviations."""
    draw, n_trials = random.Random(7), 1000
    verdicts = [
        confirmed(*(noisy(draw, gain) for _ in range(5)))[1].verdict for _ in range(n_trials)
    ]
    assert least <= verdicts.count("kept") / n_trials <= most


def test_a_process_that_dies_ends_the_trial_with_its_reason():
    bench, trial = confirmed(outcome(0.8, 2), outcome(0.8, 2, status="crashed"))
    assert (trial.status, trial.reason) == ("crashed", "killed (the candidate)")
    assert trial.verdict != "kept", "half a confirmation confirms nothing"
    assert bench.orders == ["ABBA", "|", "BAAB"], "nor does more of it"


def test_a_confirmed_trial_in_the_store_is_not_run_again():
    bench = Bench()
    known = confirmed(*[outcome(0.8, 2)] * 3)[1]
    bench.stored.append(msgspec.structs.replace(known, lever="sdpa"))
    again = Laboratory(bench, bench).confirm(
        "sdpa", BASE, pull(SDPA, BASE), None, affords_more=lambda: True
    )
    assert again == known
    assert bench.orders == []


@pytest.mark.parametrize("arm", ["base", "candidate"])
def test_what_ctrl_c_ended_says_nothing_of_the_lever(arm):
    stopped = msgspec.structs.replace(
        measured(BASE, 1.0, 0, status="crashed"), reason="interrupted by Ctrl-C"
    )
    whole = measured(BASE, 1.0, 0.1)
    base, candidate = (stopped, whole) if arm == "base" else (whole, stopped)
    trial = screened(base, msgspec.structs.replace(candidate, case=pull(SDPA, BASE)))
    assert trial.verdict == "inconclusive"
    assert interrupted(trial)
    assert not rescues(trial)
    assert not promising(trial)


def test_only_a_base_without_memory_is_rescued():
    candidate = measured(pull(SDPA, BASE), 1.0, 0.1)
    assert rescues(screened(measured(BASE, 1.0, 0, status="oom"), candidate))
    assert not rescues(screened(measured(BASE, 1.0, 0, status="timeout"), candidate))


def test_a_confirmation_that_failed_is_not_kept_for_later():
    bench, _ = confirmed(outcome(0.8, 2), outcome(0.8, 2, status="crashed"))
    assert bench.stored == []
