"""What screenings say of a lever."""

import msgspec
import pytest

from peakward.levers.catalogue import lever, pull
from peakward.records.case import ModelCase, Workload
from peakward.records.measurement import (
    Environment,
    Interval,
    Measurement,
    Protocol,
    Summary,
    Validity,
)
from peakward.tune import screening
from peakward.tune.screening import promising, rescues

from .world import SHAPE

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


def screened(base, candidate):
    return screening.screened("sdpa", base, candidate, wall_s=1.0)


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


def test_what_is_slower_is_rejected_whatever_the_verdict_on_its_times():
    unsteady = msgspec.structs.replace(
        measured(pull(SDPA, BASE), 3.0, 0.01), validity=Validity(verdict="unstable")
    )
    trial = screened(measured(BASE, 1.0, 0.01), unsteady)
    assert trial.verdict == "rejected"
    assert trial.reason == "slower in the whole interval when screened; unstable times"


def test_what_may_be_no_gain_is_not_called_faster():
    """1.02× (0.951–1.09×) of the default run on two cores."""
    trial = screened(measured(BASE, 1.0, 0.035), measured(pull(SDPA, BASE), 0.98, 0.034))
    assert trial.time_ratio.high > 1
    assert trial.reason == "the interval holds both a gain of 1% and none when screened"
    assert promising(trial), "worth confirming all the same"


def test_a_candidate_that_does_not_run_keeps_its_status_and_reason():
    trial = screened(measured(BASE, 1.0, 0.1), measured(pull(SDPA, BASE), 1.0, 0, status="oom"))
    assert (trial.status, trial.verdict, trial.reason) == ("oom", "rejected", "needed 9 GiB")


@pytest.mark.parametrize("ended_by", ["user", "outside"])
@pytest.mark.parametrize("arm", ["base", "candidate"])
def test_what_no_case_ended_says_nothing_of_the_lever(arm, ended_by):
    stopped = msgspec.structs.replace(
        measured(BASE, 1.0, 0, status="crashed"), reason="taken away", ended_by=ended_by
    )
    whole = measured(BASE, 1.0, 0.1)
    base, candidate = (stopped, whole) if arm == "base" else (whole, stopped)
    trial = screened(base, msgspec.structs.replace(candidate, case=pull(SDPA, BASE)))
    assert trial.verdict == "inconclusive"
    assert trial.ended_by == ended_by
    assert not rescues(trial)
    assert not promising(trial)


def test_only_a_base_without_memory_is_rescued():
    candidate = measured(pull(SDPA, BASE), 1.0, 0.1)
    assert rescues(screened(measured(BASE, 1.0, 0, status="oom"), candidate))
    assert not rescues(screened(measured(BASE, 1.0, 0, status="timeout"), candidate))
