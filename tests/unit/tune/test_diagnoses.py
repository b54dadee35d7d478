"""The diagnoses of an investigation's cases."""

import msgspec
import pytest

from peakward.levers import loader
from peakward.records.case import StepCase
from peakward.tune.diagnoses import diagnosed
from peakward.tune.forecasts import Forecasts
from peakward.tune.outlook import bounds_of
from unit.diagnose.rules.made import profile


def forecasts(studies, capture=None, **environment):
    return Forecasts(msgspec.structs.replace(studies.H200, **environment), None, capture)


def test_each_measured_case_by_its_own_records(studies):
    study = studies.run_study()
    baseline, best = diagnosed(
        study.measurements,
        profiles=study.profiles,
        memory=study.memory,
        forecasts=forecasts(studies),
    )
    assert (baseline.case, best.case) == (studies.BASELINE, studies.BEST)
    assert baseline.whole_s == 1.004 or baseline.basis == "measured step"
    first = {each.code: each for each in baseline.findings}
    assert {each.lever for each in first["BW003"].gains} <= {"fused-optimizer", "triton-optimizer"}
    assert all(each.gain is not None for each in first["BW003"].gains)
    assert {"HOST007", "DEV001"} <= {each.code for each in best.findings}


def test_what_was_not_profiled_is_judged_by_what_there_is(studies):
    study = studies.run_study()
    here = forecasts(studies, device_name="a device that nobody knows")
    _, best = diagnosed(study.measurements, profiles=(), memory=(), forecasts=here)
    assert [each.code for each in best.findings] == ["DEV001", "HOST007"]
    assert best.whole_s is None
    missing = {each.code for each in best.abstentions}
    assert {"HOST001", "BW001", "MEM002"} <= missing


def test_of_a_live_step_findings_stand_and_gains_are_not_computed(studies):
    study = studies.run_study()
    step = StepCase(name="step", fingerprint="", device="cuda")
    measured = msgspec.structs.replace(study.measurements[0], case=step)
    profiles = tuple(
        msgspec.structs.replace(each, case=step)
        for each in study.profiles
        if each.case == studies.BASELINE
    )
    (told,) = diagnosed((measured,), profiles=profiles, memory=(), forecasts=forecasts(studies))
    assert (told.case, told.subject) == (step, "step")
    gains = [gain for each in told.findings for gain in each.gains]
    assert gains
    assert all(each.gain is each.saved_bytes is None for each in gains)
    assert {each.source.partition(":")[0] for each in gains} == {"not computed"}


@pytest.mark.parametrize("handles", [(), ("loader",)])
def test_waits_of_a_live_step_are_answered_by_another_loader_where_one_was_given(studies, handles):
    step = StepCase(name="step", fingerprint="", device="cuda", handles=handles)
    study = studies.run_study()
    measured = msgspec.structs.replace(study.measurements[0], case=step)
    waits = profile(idle={"data_loading": 100})
    profiles = (msgspec.structs.replace(study.profiles[0], case=step, profile=waits, n_steps=1),)
    (told,) = diagnosed((measured,), profiles=profiles, memory=(), forecasts=forecasts(studies))
    found = next(each for each in told.findings if each.code == "HOST001")
    assert ({each.lever for each in found.gains} == set(loader.NAMES)) == bool(handles)
    bounds = bounds_of((told,))
    assert ({bounds.get(name) for name in loader.NAMES} == {1 / found.bound}) == bool(handles)
