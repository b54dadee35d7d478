"""Stored studies, told anew: by today's code, from the measurements, and never silently by yesterday's."""

import msgspec
import pytest

from peakward.records.errors import PeakwardError
from peakward.records.measurement import Validity
from peakward.records.study import Conclusion
from peakward.studies import execute as execute_module
from peakward.studies.bench import bench, compare, table
from peakward.studies.engine import Parts
from peakward.studies.execute import execute, told
from peakward.studies.readings import Readings
from peakward.studies.registry import STUDIES
from peakward.studies.retell import PUT_TOGETHER, as_stored, retold, retold_bench
from peakward.studies.scope import Scope
from peakward.tune.profiles import NOT_PROFILED

STALE = Conclusion(text="What the code of yesterday said.", evidence=())


@pytest.fixture(autouse=True)
def fixed_setting(monkeypatch, setting):
    monkeypatch.setattr(
        execute_module,
        "read_setting",
        lambda environment, scope: setting(scope, environment.device_type),
    )


def carried_out(name, lab, scope):
    return execute(name, lab, scope, command=f"peakward study {name}")


def stale(study):
    return msgspec.structs.replace(study, tables=(), plots=(), conclusions=(STALE,), notes=())


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_tables_and_sentences_come_from_the_measurements_alone(name, device, setting, lab):
    scope = Scope("small" if device == "cpu" else "corners")
    study = carried_out(name, lab(setting(device=device)), scope)
    anew = retold(stale(study), scope)
    assert (anew.tables, anew.plots, anew.conclusions) == (
        study.tables,
        study.plots,
        study.conclusions,
    )
    assert anew.notes[1:] == study.notes
    n = len(study.conclusions)
    assert f"; {n} of {n} sentences read otherwise than those stored." in anew.notes[0]
    assert (anew.measurements, anew.environment) == (study.measurements, study.environment)


def test_a_note_says_with_which_version_and_when_the_cases_were_measured(setting, lab):
    study = carried_out("fusion", lab(setting()), Scope("corners"))
    older = msgspec.structs.replace(
        study,
        environment=msgspec.structs.replace(study.environment, peakward="0.0.7"),
        started_at="2025-03-04T00:00:00+00:00",
    )
    (first, *_) = retold(older, Scope("corners")).notes
    assert first.startswith("Measured with Peakward 0.0.7 on 2025-03-04. This Peakward (")
    assert "otherwise" not in first


def test_cases_that_the_record_lacks_are_named(setting, lab):
    study = carried_out("fusion", lab(setting()), Scope("corners"))
    fewer = msgspec.structs.replace(study, measurements=study.measurements[:-1])
    notes = retold(fewer, Scope("corners")).notes
    assert notes[1].startswith(
        "Not measured in this record: 1 of the cases that the study has today: cross-entropy"
    )


def test_doubts_are_judged_anew_and_what_the_lab_could_not_take_stays(setting, lab):
    study = carried_out("kernels", lab(setting()), Scope("corners"))
    doubtful = tuple(
        msgspec.structs.replace(each, validity=Validity(verdict="unstable", reasons=("a reason",)))
        for each in study.measurements
    )
    lab_notes = (f"{NOT_PROFILED}a case: a crash.", f"{PUT_TOGETHER} of two databases.")
    notes = ("A convention.", *lab_notes)
    older = msgspec.structs.replace(study, measurements=doubtful, notes=notes)
    anew = retold(older, Scope("corners"))
    assert set(lab_notes) <= set(anew.notes)
    assert "A convention." not in anew.notes
    assert all("unstable or throttled" in each.text for each in anew.conclusions)


def test_a_study_measured_by_another_protocol_is_not_told_as_if_it_had_not_run(setting, lab):
    study = carried_out("fusion", lab(setting()), Scope("corners"))
    protocol = msgspec.structs.replace(study.measurements[0].protocol, warmup_steps=7)
    other = msgspec.structs.replace(
        study,
        measurements=tuple(
            msgspec.structs.replace(each, protocol=protocol) for each in study.measurements
        ),
    )
    with pytest.raises(PeakwardError, match="protocol of today"):
        retold(other, Scope("corners"))
    with pytest.raises(PeakwardError, match="none of them"):
        retold(msgspec.structs.replace(study, name="layout"), Scope("corners"))


def test_what_cannot_be_told_anew_says_whose_text_it_is(setting, lab):
    study = carried_out("fusion", lab(setting()), Scope("corners"))
    shown = as_stored(stale(study), "a reason")
    assert shown.conclusions == (STALE,)
    assert shown.notes[0].startswith(
        "The tables and sentences are those that Peakward 0 stored on "
    )
    assert shown.notes[0].endswith("cannot derive them anew: a reason.")


def test_a_whole_bench_is_told_anew_and_one_that_was_ended_is_not(setting, lab):
    here = setting()
    plan = carried_out("throughput", lab(here), Scope("corners")).measurements
    made = bench(
        lab(here),
        [each.case for each in plan],
        [plan[0].protocol],
        command="peakward bench",
        notes=("Not planned: a case.",),
    )
    doubtful = msgspec.structs.replace(
        made.measurements[0], validity=Validity(verdict="unstable", reasons=("a reason",))
    )
    found = (doubtful, *made.measurements[1:])
    made = told(
        msgspec.structs.replace(made, measurements=found),
        Readings(found),
        Parts(
            tables=(table([(each.case, each.protocol) for each in found], Readings(found)),),
            conclusions=compare([(each.case, each.protocol) for each in found], Readings(found)),
            notes=made.notes,
        ),
    )
    anew = retold_bench(msgspec.structs.replace(made, conclusions=(STALE,)))
    assert (anew.tables, anew.conclusions) == (made.tables, made.conclusions)
    assert anew.notes[1:] == made.notes
    with pytest.raises(PeakwardError, match="complete grid"):
        retold_bench(msgspec.structs.replace(made, complete=False))
