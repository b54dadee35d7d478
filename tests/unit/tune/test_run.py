"""What an investigation says before it measures, and keeps."""

import pytest

from peakward.report.run import page
from peakward.tune.investigation import Aim, Investigation
from peakward.tune.run import investigate

from .known_device import Device, WithModules, of_module, run


def test_what_is_predicted_before_is_told_and_kept(studies):
    """The baseline's floor and forecast come before its measurement; the study holds both cases'."""
    device, heard = Device(studies, lambda case: 0.1), []
    asked = Investigation(
        case=studies.BASELINE,
        levers=(),
        budget_s=1e6,
        command="peakward run",
        obstacle=lambda pulled, case: None,
        to_command=lambda case: "",
    )
    study = investigate(
        asked,
        device,
        device,
        on_stage=lambda stage: None,
        on_prediction=lambda floor, forecast, fitting: heard.append(
            (floor, forecast, len(device.measured))
        ),
    )
    ((floor, forecast, n_measured),) = heard
    assert n_measured == 0
    assert floor.floor_s < forecast.step_s.estimate
    assert study.forecasts == (forecast,)
    assert study.predictions == (floor,)


@pytest.mark.parametrize("call_s", [4e-6, 20e-6])
def test_a_forecast_is_by_what_a_call_costs_now(studies, call_s):
    device = Device(studies, lambda case: 0.1)
    device.call_s = call_s
    stored = recorded_call_of(run(Device(studies, lambda case: 0.1)))
    assert stored[:2] != (call_s, 2 * call_s)
    assert recorded_call_of(run(device)) == (call_s, 2 * call_s, True)


def recorded_call_of(study):
    time = study.forecasts[0].time
    return time.host_call_s, time.host_backward_call_s, time.host_is_known


def test_a_module_is_foretold_by_its_operators_before_it_is_measured(studies, make_module_case):
    large = {"batch_size": 64, "seq_len": 64}  # Or cuBLAS's workspace would be all of the peak.
    case = make_module_case("py:tiny_gpt:build", device="cuda", workload=large)
    device = WithModules(studies, lambda each: 0.1 if each == case else 0.08)
    study, ((floor, told, fitting, n_measured),) = of_module(
        device, case, "bf16-mixed", "checkpointing", "fused-optimizer", "cuda-graphs"
    )
    assert (floor, fitting, n_measured) == (None, (), 0)
    assert told.case == case
    assert told.step_s.low < told.step_s.estimate < told.step_s.high
    assert study.forecasts[0] == told
    by_lever = {each.lever: each.foretold for each in study.trials if each.base == case}
    assert by_lever["bf16-mixed"].time_ratio is not None
    assert by_lever["bf16-mixed"].memory_ratio is not None
    assert by_lever["checkpointing"].time_ratio.estimate >= 1
    assert by_lever["checkpointing"].memory_ratio < 1
    assert by_lever["fused-optimizer"].time_ratio.estimate < 1
    assert by_lever["fused-optimizer"].memory_ratio <= 1
    gaps = by_lever["cuda-graphs"].absent
    assert {each.figure for each in gaps} == {"time", "memory"}
    assert "runs each operator by itself" in gaps[0].reason
    assert "Predicted and measured" in [each.title for each in page.document(study).sections]
    assert not any("Prediction of the baseline" in note for note in study.notes)
    assert any(note.startswith("Floor and MFU: not computed") for note in study.notes)


def test_what_was_recorded_of_its_cases_is_in_the_study(studies):
    device = Device(studies, lambda case: 0.5 if case.configuration.precision == "bf16" else 1.0)
    stored = studies.recorded()
    baseline = run(device, "bf16").measurements[0].case
    device.recorded[baseline, studies.H200.key] = stored
    device.measured.clear()
    assert run(device, "bf16").memory == (stored,)
    device.recorded = {(baseline, "elsewhere"): stored}
    assert run(device, "bf16").memory == ()


def test_each_measured_case_is_diagnosed(studies):
    device = Device(studies, lambda case: 0.5 if case.configuration.precision == "bf16" else 1.0)
    study = run(device, "bf16")
    assert [each.case for each in study.diagnoses] == [each.case for each in study.measurements]
    for each in study.diagnoses:
        assert each.findings or each.clean


def test_why_a_module_has_no_forecast_is_said(studies, make_module_case):
    case = make_module_case("py:tiny_gpt:build", device="cuda")
    study, ((_, told, _, _),) = of_module(Device(studies, lambda each: 0.1), case, "bf16-mixed")
    assert told is None
    assert study.forecasts == ()
    (trial,) = study.trials
    assert {each.reason for each in trial.foretold.absent} == {"no module here"}
    assert "Prediction of the baseline: not computed: no module here." in study.notes


def test_levers_beyond_the_class_are_refused_and_the_report_says_so(studies):
    study = run(Device(studies, lambda case: 0.1), "bf16", "sdpa", aim=Aim(numerics="reordered"))
    (refused,) = [trial for trial in study.trials if trial.stage == "refused"]
    assert (refused.lever, refused.reason) == (
        "bf16",
        "is approximate, and --numerics reordered was asked for",
    )
    assert any("class reordered" in note for note in study.notes)
