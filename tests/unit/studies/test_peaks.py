"""Predicted peaks by phase and category."""

import msgspec

from peakward.models.presets import model
from peakward.prediction.memory.peak import peak_memory
from peakward.records.measurement import MemoryUse
from peakward.studies.cases import model_case
from peakward.studies.peaks import OTHER, peak_categories, peak_phase, phase_of, predicted_peak

CASE = model_case(
    model("small"), 4, 1024, "train_step", "cuda", precision="bf16-mixed", attention="sdpa"
)


def test_categories_add_up_to_the_peak_on_both_devices():
    on_cpu = msgspec.structs.replace(CASE, device="cpu")
    for case in (CASE, on_cpu):
        assert sum(peak_categories(case).values()) == predicted_peak(case)
    assert peak_categories(on_cpu)[OTHER] < peak_categories(CASE)[OTHER], "no workspace on a CPU"


def test_the_phase_and_the_states_are_the_prediction_s():
    found = peak_memory(CASE)
    assert peak_phase(CASE) == found.phase == "backward"
    held = found.peak
    states = held.parameters_bytes + held.gradients_bytes + held.optimizer_state_bytes
    assert peak_categories(CASE)["parameters, gradients and optimizer state"] == states
    assert peak_categories(CASE)["casts of weights"] == held.weight_casts_bytes > 0


def test_a_measured_peak_lies_in_the_predicted_phase_where_the_two_are_one(measure, setting):
    here = setting()

    def phase(case, times):
        peak = MemoryUse(peak_allocated_bytes=round(times * predicted_peak(case)))
        made = measure(case, here.protocol(), here.environment)
        return phase_of(msgspec.structs.replace(made, memory=peak))

    assert [phase(CASE, times) for times in (0.9, 0.96, 1.04, 1.1)] == [
        None,
        "backward",
        "backward",
        None,
    ]
    assert phase(msgspec.structs.replace(CASE, device="cpu"), 1.0) is None, "of the process"
    assert phase_of(measure(CASE, here.protocol(), here.environment, "oom")) is None
    assert phase_of(None) is None


def test_of_what_is_not_covered_nothing_is_told():
    settings = msgspec.structs.replace(CASE.configuration, compile="default", checkpointing="sqrt")
    case = msgspec.structs.replace(CASE, configuration=settings)
    assert predicted_peak(case) is peak_phase(case) is peak_categories(case) is None
