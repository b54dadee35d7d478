"""What passes through a recorder stays in it."""

from peakward.records.protocol import Protocol
from peakward.studies.cases import model_case
from peakward.studies.recorder import Recorder
from peakward.studies.scope import micro

CASE = model_case(micro(), 2, 64, "forward", "cuda")
PLANNED = (CASE, Protocol())


def test_measurements_are_returned_and_kept(setting, lab):
    recorder = Recorder(lab(setting()))
    made = recorder.measure(PLANNED)
    assert recorder.readings.find(PLANNED) is made


def test_a_first_step_is_put_with_its_measurement_under_an_id_of_its_own(setting, lab):
    recorder = Recorder(lab(setting()))
    made = recorder.measure(PLANNED)
    recorder.explain_first_step(PLANNED)
    found = recorder.readings.find(PLANNED)
    assert found.first_step.profiled_s == 2.0
    assert found.id != made.id, "the store holds that id without a first step"
    assert len(recorder.readings) == 1


def test_no_first_step_of_a_case_that_failed_or_was_not_run(setting, lab):
    bench = lab(setting(), overrule=lambda case: "oom")
    bench.workers = None
    recorder = Recorder(bench)
    recorder.explain_first_step(PLANNED)
    recorder.measure(PLANNED)
    recorder.explain_first_step(PLANNED)
    assert recorder.readings.find(PLANNED).first_step is None
