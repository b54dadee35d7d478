"""What the study of an investigation holds."""

from peakward.tune.aim import Aim

from .known_device import Device, of_module, run


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
