"""What an investigation says before it measures, and keeps."""

from peakward.report.run import page
from peakward.tune.investigation import Investigation
from peakward.tune.run import investigate

from .known_device import Device, WithModules, of_module


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


def test_a_module_is_foretold_by_its_operators_before_it_is_measured(studies, make_module_case):
    large = {"batch_size": 64, "seq_len": 64}  # Or cuBLAS's workspace would be all of the peak.
    case = make_module_case("py:tiny_gpt:build", device="cuda", workload=large)
    device = WithModules(studies, lambda each: 0.1 if each == case else 0.08)
    study, ((floor, told, fitting, n_measured),) = of_module(
        device, case, "bf16-mixed", "checkpointing", "fused-optimizer"
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
    gaps = by_lever["fused-optimizer"].absent
    assert {each.figure for each in gaps} == {"time", "memory"}
    assert "steps with AdamW over lists" in gaps[0].reason
    assert "Predicted and measured" in [each.title for each in page.document(study).sections]
    assert not any("Prediction of the baseline" in note for note in study.notes)
    assert any(note.startswith("Floor and MFU: not computed") for note in study.notes)
