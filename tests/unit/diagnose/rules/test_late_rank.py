"""One rank of several that is late."""

import msgspec
import pytest

from peakward.diagnose.diagnosis_input import Symptom
from peakward.records.profile import Job, Rank

from .made import MS, PRODUCTS, abstains, given, judge, kernel, profile


def reducing(ms):
    return profile(
        PRODUCTS,
        kernel("ncclDevKernel_AllReduce", ms, "communication", phase="backward"),
        communication_ns=round(ms * MS),
    )


def job(*waits_ms, late=0, idle_ms=0.0, compute_ms=0.0):
    """The late one, and others that wait for it."""
    ranks = tuple(
        Rank(
            rank=at,
            source="by hand",
            offset_ns=0,
            compute_ns=50 * MS,
            communication_ns=0,
            waited_ns=round(ms * MS),
            n_last=0,
            waited_for_late_ns=round(ms * MS),
            idle_ns=5 * MS,
        )
        for at, ms in enumerate((0, *waits_ms))
    )
    own = msgspec.structs.replace(
        ranks[0], idle_ns=round((5 + idle_ms) * MS), compute_ns=round((50 + compute_ms) * MS)
    )
    return Job(
        ranks=(own, *ranks[1:]),
        n_collectives=9,
        n_unmatched=0,
        imbalance=1.0,
        straggler=None,
        late=late,
    )


def of(found, rank, ms=40):
    return given(reducing(ms), job=found, rank=found.ranks[rank])


def test_the_others_wait_and_it_is_named():
    found = job(31, 34, 39, idle_ms=30)
    seen = judge("COMM002", of(found, 1))
    assert isinstance(seen, Symptom)
    assert sum(seen.parts.values()) == pytest.approx(31e-3)
    assert seen.cause == (
        "Rank 0 is late: the other 3 ranks wait 31 to 39 ms for it in collectives. Its GPU was idle 30 ms "
        "longer than those of the others."
    )


def test_the_late_one_is_told_what_it_costs():
    found = job(30, 40, compute_ms=28)
    seen = judge("COMM002", of(found, 0))
    assert isinstance(seen, Symptom)
    assert seen.share == pytest.approx(35 / 140)
    assert "Its GPU computed 28 ms longer" in seen.cause


def test_of_two_the_other_waits_and_what_made_it_late_may_not_be_seen():
    seen = judge("COMM002", of(job(30), 1))
    assert seen.cause == "Rank 0 is late: the other rank waits 30 ms for it in collectives."


def test_waiting_is_no_want_of_buckets():
    found = job(31, 39, idle_ms=30)
    assert judge("COMM001", of(found, 2)) is None
    left = judge("COMM001", of(found, 1))
    assert sum(left.parts.values()) == pytest.approx(9e-3)
    assert "one may be late" not in left.advice


def test_silent_without_a_late_rank_or_without_communication():
    assert judge("COMM002", of(job(0, 0, late=None), 1)) is None
    assert judge("COMM002", given(profile())) is None


def test_one_rank_alone_cannot_tell():
    assert abstains("COMM002", given(reducing(40)))
    assert "may be late" in judge("COMM001", given(reducing(40))).advice
