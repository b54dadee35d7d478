"""A study on record: whole, interrupted, and with every case failing."""

import msgspec
import pytest

from peakward.hardware.devices import devices
from peakward.lab.measure.messages import Failed
from peakward.models.presets import MODELS
from peakward.models.scaling_fits import HOFFMANN_UNROUNDED, SCALING_FITS
from peakward.records.codec import from_json, to_json
from peakward.records.measurement import Validity
from peakward.records.study import Study
from peakward.report.study import of_any_study
from peakward.studies import execute as execute_module
from peakward.studies.execute import execute
from peakward.studies.registry import STUDIES
from peakward.studies.scope import Scope

OF_CASES = [each.name for each in STUDIES.values() if each.measures == "cases"]


@pytest.fixture(autouse=True)
def fixed_setting(monkeypatch, setting):
    """The fake lab's setting, without asking this machine for a compiler."""
    monkeypatch.setattr(
        execute_module,
        "read_setting",
        lambda environment, scope: setting(scope, environment.device_type),
    )


def run(name, lab, scope="corners"):
    return execute(name, lab, Scope(scope), command=f"peakward study {name}")


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_study_is_complete_stored_and_sound(name, device, setting, lab):
    bench = lab(setting(device=device))
    study = run(name, bench, "small" if device == "cpu" else "corners")
    assert study.complete
    assert bench.studies == [study]
    assert from_json(to_json(study), Study) == study
    assert len(study.measurements) == len(bench.asked) == len(set(bench.asked))
    assert study.conclusions
    assert study.tables
    of_any_study(study)


@pytest.mark.parametrize("name", OF_CASES)
def test_every_conclusion_stands_on_measurements_of_the_study(name, setting, lab):
    study = run(name, lab(setting()))
    ids = {each.id for each in (*study.measurements, *study.profiles, *study.memory)}
    ids |= {study.calibration.id} if study.calibration else set()
    for conclusion in study.conclusions:
        assert conclusion.evidence, conclusion.text
        for each in conclusion.evidence:
            assert each.from_ids, (conclusion.text, each.quantity)
            assert set(each.from_ids) <= ids


def test_what_is_computed_stands_on_the_catalogue_and_on_no_calibration(setting, lab, calibration):
    bench = lab(setting())
    study = execute("scaling", bench, Scope("corners"), command="", calibration=calibration())
    assert (study.calibration, study.measurements, bench.asked) == (None, (), [])
    names = {each.key for each in devices()} | {
        each.name for each in (*MODELS, *SCALING_FITS, HOFFMANN_UNROUNDED)
    }
    names |= {"dense, active size", "dense, total size"}
    for conclusion in study.conclusions:
        for each in conclusion.evidence:
            assert each.from_ids, (conclusion.text, each.quantity)
            assert set(each.from_ids) <= names
    assert of_any_study(study).headline == "Computed from published figures: nothing was measured"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_measures_the_device_stands_on_its_calibration(device, setting, lab):
    bench = lab(setting(device=device))
    study = run("hierarchy", bench)
    assert bench.calibrations == [study.calibration]
    for conclusion in study.conclusions:
        for each in conclusion.evidence:
            assert each.from_ids == (study.calibration.id,)
    assert of_any_study(study).headline == "Calibration of a device"


def test_a_calibration_ended_by_ctrl_c_leaves_the_study_incomplete_and_empty(setting, lab):
    bench = lab(setting())

    def stop(subject, device_type):
        raise KeyboardInterrupt

    bench.workers.rates = stop
    study = run("hierarchy", bench)
    assert not study.complete
    assert (study.tables, study.conclusions, bench.calibrations) == ((), (), [])
    of_any_study(study)


@pytest.mark.parametrize("name", STUDIES)
def test_rows_have_a_cell_for_every_column(name, setting, lab):
    for table in run(name, lab(setting())).tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}, table.title


@pytest.mark.parametrize("name", OF_CASES)
@pytest.mark.parametrize("status", ["oom", "timeout", "crashed", "invalid"])
def test_when_every_case_fails_the_rows_stay_and_no_gain_is_claimed(name, status, setting, lab):
    study = run(name, lab(setting(), overrule=lambda case: status))
    assert study.complete
    assert any(status in row for table in study.tables for row in table.rows)
    assert [each.text for each in study.conclusions if "×" in each.text] == []


@pytest.mark.parametrize("name", OF_CASES)
@pytest.mark.parametrize("n", [0, 1, 5])
def test_an_interrupted_study_keeps_what_it_has(name, n, setting, lab):
    bench = lab(setting(), stop_after=n)
    study = run(name, bench)
    assert not study.complete
    assert len(study.measurements) == n
    assert bench.studies == [study]
    of_any_study(study)


def test_a_case_ended_by_ctrl_c_leaves_the_study_incomplete(setting, lab):
    bench = lab(setting(), overrule=lambda case: "crashed" if case.model.name == "small" else None)
    measure = bench.measure

    def interrupted(case, protocol):
        made = measure(case, protocol)
        ended_by = "user" if made.status == "crashed" else "case"
        return msgspec.structs.replace(made, ended_by=ended_by)

    bench.measure = interrupted
    assert not run("warmup", bench).complete


def test_unstable_times_are_named_in_the_notes(setting, lab, measure):
    bench = lab(setting())
    steady = bench.measure
    shaky = Validity(verdict="unstable", reasons=("coefficient of variation 12% > 5%",))
    bench.measure = lambda *plan: msgspec.structs.replace(steady(*plan), validity=shaky)
    notes = run("warmup", bench).notes
    assert any("16 of 16 times are unstable" in each for each in notes)
    assert any("coefficient of variation 12% > 5%" in each for each in notes)


@pytest.mark.parametrize(
    ("ended_by", "complete"), [("case", True), ("outside", True), ("user", False)]
)
def test_a_case_that_could_not_be_profiled_is_named_in_the_notes(ended_by, complete, setting, lab):
    bench = lab(setting())
    bench.store.profile = lambda *key: None
    bench.workers.raise_if_stopping = lambda: None
    failed = Failed(status="crashed", reason="gone", ended_by=ended_by)
    bench.workers.profile = lambda *asked, **how: failed
    study = run("kernels", bench)
    assert study.complete == complete
    assert study.profiles == ()
    assert sum("gone" in note for note in study.notes) == 12
