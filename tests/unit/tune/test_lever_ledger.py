"""What predictions of levers came to, counted."""

import pytest

from peakward.levers.catalogue import lever, pull
from peakward.records.lever import Bound, Foretold, NumericsVerdict, Pair, Trial
from peakward.records.measurement import Interval
from peakward.records.plan import Absent
from peakward.tune.lever_ledger import NOT_KEPT, Tried, lever_ledger

from .world import BASE


def interval(estimate, low, high):
    return Interval(estimate=estimate, low=low, high=high)


def trial(id_, measured=0.8, told=0.8, *, name="sdpa", stage="confirmed", **fields):
    """Told within a tenth; by default of one base, so that pairs tell trials apart."""
    foretold = None
    if told is not None:
        foretold = Foretold(time_ratio=interval(told, told * 0.9, told * 1.1))
    plain = {
        "environment_key": "here",
        "pairs": (Pair(process=0, base_s=1.0, candidate_s=measured),),
        "time_ratio": interval(measured, measured * 0.99, measured * 1.01),
        "foretold": foretold,
        "verdict": "kept",
    }
    return Trial(
        id=id_,
        lever=name,
        base=BASE,
        candidate=pull(lever(name), BASE),
        stage=stage,
        reason="",
        **plain | fields,
    )


def ledger(*trials, device="A GPU"):
    return lever_ledger((Tried(each, device) for each in trials), ("here.db",))


def test_errors_intervals_and_signs():
    found = ledger(
        trial("a", 0.80, 0.80),
        trial("b", 0.90, 0.75),
        trial("c", 1.20, 0.96, verdict="rejected"),
        trial("d", 1.005, 0.99, verdict="inconclusive"),
    )
    (entry,) = found.entries
    assert (entry.n_trials, entry.n_kept, entry.n_rejected, entry.n_inconclusive) == (4, 2, 1, 1)
    assert entry.time.n == 4
    assert entry.time.p90 == pytest.approx(0.25)
    assert entry.time.median == pytest.approx((1.005 / 0.99 - 1 + 0.2) / 2)
    assert entry.n_within == 2, "a and d"
    assert (entry.n_decided, entry.n_sign_right) == (3, 2), (
        "d is neither faster nor slower; c is wrong"
    )
    assert [miss.trial for miss in found.worst] == ["c", "b", "d", "a"]
    assert found.worst[0].error == pytest.approx(0.25)


def test_what_the_measurement_cannot_tell_is_neither_right_nor_wrong():
    unsure = trial("a", 0.95, 1.1, time_ratio=interval(0.95, 0.8, 1.05))
    (entry,) = ledger(unsure, trial("b", 0.90, 0.75)).entries
    assert (entry.time.n, entry.n_decided, entry.n_sign_right) == (2, 1, 1)


def test_levers_and_devices_are_apart():
    tried = (
        Tried(trial("a"), "B"),
        Tried(trial("b", name="bf16"), "B"),
        Tried(trial("c", environment_key="there"), "A"),
    )
    found = lever_ledger(tried, ())
    assert [(each.device, each.lever) for each in found.entries] == [
        ("A", "sdpa"),
        ("B", "bf16"),
        ("B", "sdpa"),
    ]


def test_stored_times_that_a_later_run_takes_up_count_once_as_first_foretold():
    first, again = trial("a", told=0.7), trial("b", told=0.8)
    (miss,) = ledger(first, again).worst
    assert miss.trial == "a"


def test_a_confirmation_leaves_its_screening_out():
    screened = trial("s", 0.6, stage="screened")
    found = ledger(screened, trial("c", 0.8), trial("n", 0.7, name="bf16", stage="screened"))
    assert found.n_trials == 2
    assert {miss.trial for miss in found.worst} == {"c", "n"}


def test_a_confirmation_that_failed_leaves_the_screening_in():
    died = trial("c", stage="confirmed", time_ratio=None, pairs=(), status="crashed")
    found = ledger(trial("s", 0.6, stage="screened"), died)
    assert found.n_trials == 2
    assert [miss.trial for miss in found.worst] == ["s"]


def test_what_could_not_apply_is_no_trial():
    refused = trial("r", 0.8, stage="refused", pairs=(), time_ratio=None)
    assert ledger(refused).n_trials == 0


def test_memory_and_numbers_are_counted():
    told = Foretold(memory_ratio=0.5, absent=(Absent(figure="time", reason="no model"),))
    verdicts = ("holds", "violated", "not computed")
    found = ledger(
        *(
            trial(
                verdict,
                0.8 + i / 100,
                foretold=told,
                base_peak_bytes=100,
                candidate_peak_bytes=55,
                numerics=NumericsVerdict(declared="reordered", verdict=verdict),
            )
            for i, verdict in enumerate(verdicts)
        )
    )
    (entry,) = found.entries
    assert entry.time is None
    assert entry.memory.median == pytest.approx(0.1)
    assert (entry.n_numerics_held, entry.n_numerics_violated) == (1, 1)
    assert [(each.reason, each.n) for each in found.unpredicted] == [("no model", 3)]


def test_older_trials_say_why_they_have_no_prediction():
    assert ledger(trial("a", told=None)).unpredicted[0].reason == NOT_KEPT


def test_gains_beyond_their_bound_are_named():
    broken = Bound(least_time_ratio=0.9, basis="floor", broken=True)
    assert ledger(trial("a", bound=broken), trial("b", 0.7)).impossible == ("a",)
