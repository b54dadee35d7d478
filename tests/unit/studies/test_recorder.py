"""What passes through a recorder stays in it."""

from peakward.lab.measure.messages import Failed
from peakward.records.measurement import Protocol
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


def test_a_first_step_is_told_once(setting, lab):
    bench = lab(setting())
    recorder = Recorder(bench)
    recorder.measure(PLANNED)
    recorder.explain_first_step(PLANNED)
    assert bench.stored == [recorder.readings.find(PLANNED)]
    recorder.explain_first_step(PLANNED)
    assert bench.first_steps == [CASE]


def test_no_first_step_of_a_case_that_failed_or_was_not_run(setting, lab):
    bench = lab(setting(), overrule=lambda case: "oom")
    bench.workers = None
    recorder = Recorder(bench)
    recorder.explain_first_step(PLANNED)
    recorder.measure(PLANNED)
    recorder.explain_first_step(PLANNED)
    assert recorder.readings.find(PLANNED).first_step is None


def test_a_measured_case_is_profiled_and_its_profile_kept(setting, lab, profile):
    recorder = Recorder(lab(setting()))
    assert recorder.profile(PLANNED) is None, "not measured yet"
    recorder.measure(PLANNED)
    found = recorder.profile(PLANNED)
    assert found.case == CASE
    assert recorder.readings.profiles == (found,)
    assert recorder.readings.profile(CASE) is found


def test_a_case_that_failed_is_not_profiled(setting, lab):
    recorder = Recorder(lab(setting(), overrule=lambda case: "oom"))
    recorder.measure(PLANNED)
    assert recorder.profile(PLANNED) is None
    assert recorder.not_profiled == []


def test_a_profile_that_fails_leaves_its_reason(setting, lab):
    bench = lab(setting())
    bench.store.profile = lambda *key: None
    bench.workers.raise_if_stopping = lambda: None
    bench.workers.profile = lambda *asked, **how: Failed(status="timeout", reason="600 s passed")
    recorder = Recorder(bench)
    recorder.measure(PLANNED)
    assert recorder.profile(PLANNED) is None
    assert recorder.readings.profiles == ()
    (said,) = recorder.not_profiled
    assert said.note.endswith("fp32, naive attention, eager: timeout: 600 s passed.")


def test_the_memory_of_a_measured_case_is_recorded_and_kept(setting, lab):
    recorder = Recorder(lab(setting()))
    assert recorder.record_memory(PLANNED) is None, "not measured yet"
    recorder.measure(PLANNED)
    found = recorder.record_memory(PLANNED)
    assert recorder.readings.memory == (found,)
    assert recorder.readings.memory_of(CASE) is found


def test_memory_that_cannot_be_recorded_leaves_its_reason(setting, lab):
    bench = lab(setting())
    bench.store.memory = lambda *key: None
    bench.workers.raise_if_stopping = lambda: None
    bench.workers.record_memory = lambda *asked, **how: Failed(status="oom", reason="too big")
    recorder = Recorder(bench)
    recorder.measure(PLANNED)
    assert recorder.record_memory(PLANNED) is None
    (said,) = recorder.not_recorded
    assert said.note.endswith("oom: too big.")


def test_a_calibration_is_measured_once_and_stored(setting, lab):
    bench = lab(setting())
    for _ in range(2):
        recorder = Recorder(bench)
        recorder.calibrate(("levels", "latency"))
        assert bench.calibrations == [recorder.readings.calibration]
    assert recorder.readings.calibration.rates.latency


def test_ceilings_are_measured_once_and_stored_without_rates(setting, lab, calibration):
    bench = lab(setting("small", "cpu"))
    for _ in range(2):
        recorder = Recorder(bench)
        recorder.ceilings()
        assert bench.calibrations == [recorder.readings.calibration]
    assert recorder.readings.calibration.rates is None
    bench.calibrations.append(calibration("cpu"))
    recorder.ceilings()
    assert recorder.readings.calibration is bench.calibrations[1], "a full one has them too"


def test_a_stored_calibration_that_tells_of_less_is_not_enough(setting, lab, calibration):
    bench = lab(setting())
    bench.calibrations.append(calibration(latency=()))
    recorder = Recorder(bench)
    recorder.calibrate(("levels",))
    assert recorder.readings.calibration is bench.calibrations[0]
    recorder.calibrate(("levels", "latency"))
    assert len(bench.calibrations) == 2
    assert recorder.readings.calibration is bench.calibrations[1]
