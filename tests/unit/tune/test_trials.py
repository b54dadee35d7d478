"""What a trial of cases timed in turn says."""

import msgspec
import pytest

from peakward.lab.measure.messages import Turn
from peakward.levers.catalogue import lever, pull
from peakward.records.case import ModelCase, Workload
from peakward.records.lever import Bound
from peakward.records.measurement import Interval
from peakward.tune import trials

from .world import SHAPE

BASE = ModelCase(model=SHAPE, workload=Workload(batch_size=2, seq_len=16), device="cpu")
SDPA = lever("sdpa")


def test_each_side_has_its_own_times_energy_and_largest_peak():
    candidate = pull(SDPA, BASE)

    def turns(base_peak, candidate_peak):
        return {
            BASE: Turn(median_s=2.0, peak_bytes=base_peak, energy_j=8.0),
            candidate: Turn(median_s=1.0, peak_bytes=candidate_peak, energy_j=6.0),
        }

    comparison = trials.Comparison("sdpa", BASE, candidate, None)
    found = trials.judged(comparison, [turns(10, 5), turns(30, 7), turns(20, 6)], "k", 1.0)
    assert (found.verdict, found.time_ratio.estimate) == ("kept", 0.5)
    assert found.energy_ratio.estimate == pytest.approx(0.75)
    assert (found.base_peak_bytes, found.candidate_peak_bytes) == (30, 7)


def test_doubts_that_differ_in_their_figures_alone_are_said_once():
    candidate = pull(SDPA, BASE)

    def turn(share):
        doubts = (f"other work took {share}% > 5% of the cores while timing",)
        return Turn(median_s=1.0, peak_bytes=1, doubts=doubts)

    rounds = [{BASE: turn(60), candidate: turn(61.5)}, {BASE: turn(70), candidate: turn(80)}]
    comparison = trials.Comparison("sdpa", BASE, candidate, None)
    reason = trials.judged(comparison, rounds, "k", 1.0).reason
    assert reason.endswith("took 60% > 5% of the cores while timing, and alike in 3 more turns")
    assert reason.count("other work") == 1


@pytest.mark.parametrize(
    ("low", "high", "broken"), [(0.4, 0.45, True), (0.4, 0.55, False), (0.55, 0.6, False)]
)
def test_a_bound_is_broken_by_the_whole_interval_alone(low, high, broken):
    kept = trials.trial_of("sdpa", BASE, BASE, "k", stage="confirmed", verdict="kept")
    ratio = Interval(estimate=(low + high) / 2, low=low, high=high)
    timed = msgspec.structs.replace(kept, time_ratio=ratio)
    found = trials.held_to(timed, Bound(least_time_ratio=0.5, basis="floor"))
    assert found.bound.broken is broken
    assert found.verdict == ("inconclusive" if broken else "kept")
