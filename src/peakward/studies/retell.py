"""A stored study, its tables and sentences derived anew from its measurements by the code of today."""

import msgspec

from peakward import __version__
from peakward.records.case import (
    Case,
    CollectivesCase,
    LayoutCase,
    MicroCase,
    ModelCase,
    ModuleCase,
    NumericsCase,
    OperatorCase,
    QualityCase,
    SpeculationCase,
)
from peakward.records.errors import PeakwardError
from peakward.records.study import Study
from peakward.report.cases import label
from peakward.studies import bench, doubts
from peakward.studies.engine import Parts
from peakward.studies.execute import told
from peakward.studies.readings import Planned, Readings
from peakward.studies.registry import specification
from peakward.studies.scope import Scope
from peakward.studies.setting import Setting
from peakward.tune.memory_records import NOT_RECORDED
from peakward.tune.profiles import NOT_PROFILED

PUT_TOGETHER = "Put together afterwards"
"""How the note of a record begins that was not written by the command that measured its cases."""
MOST_NAMED = 6
"""Cases named that the study has today and the record has not."""


def retold(study: Study, scope: Scope) -> Study:
    """The study of `STUDIES` as this Peakward tells it; `scope` is what its command asked for.

    Measurements, profiles and calibration stay as they are. A note says with which version the cases were
    measured, how many sentences changed, and which cases of today's study the record lacks.

    Raises:
        PeakwardError: the study plans its cases in another way today, so that they would not be found.
    """
    readings, setting = _readings(study), _setting(study, scope)
    spec = specification(study.name)
    missing = _missing(spec.plan(setting), readings)
    return _noted(_again(study, readings, spec.parts(readings, setting)), study, missing)


def retold_bench(study: Study) -> Study:
    """A bench as this Peakward tells it.

    Raises:
        PeakwardError: it is not complete; the record does not hold the cases that were not run.
    """
    if not study.complete:
        raise PeakwardError("expected a complete grid, got one that was ended before all cases ran")
    readings = Readings(study.measurements)
    plan = tuple((each.case, each.protocol) for each in study.measurements)
    said = Parts(
        tables=(bench.table(plan, readings),),
        conclusions=bench.compare(plan, readings),
        notes=tuple(each for each in study.notes if each not in doubts.notes(readings)),
    )
    return _noted(told(study, readings, said), study, ())


def as_stored(study: Study, obstacle: str) -> Study:
    """The study with its own text, and a note that says whose that is and why it is not told anew."""
    note = (
        f"The tables and sentences are those that Peakward {study.environment.peakward} stored on "
        f"{_day(study)}. This Peakward ({__version__}) cannot derive them anew: {obstacle}."
    )
    return msgspec.structs.replace(study, notes=(note, *study.notes))


def _again(study: Study, readings: Readings, parts: Parts) -> Study:
    """Tells the study again, with the notes that only the lab could write: what it could not take, and how
    the record came about."""
    kept = (NOT_PROFILED, NOT_RECORDED, PUT_TOGETHER)
    lab_notes = [each for each in study.notes if each.startswith(kept)]
    return told(study, readings, parts, lab_notes=lab_notes)


def _noted(anew: Study, stored: Study, missing: tuple[Case, ...]) -> Study:
    old = {each.text for each in stored.conclusions}
    changed = sum(each.text not in old for each in anew.conclusions)
    made = "Measured" if stored.measurements or stored.calibration else "Computed"
    note = (
        f"{made} with Peakward {stored.environment.peakward} on {_day(stored)}. This Peakward "
        f"({__version__}) derives the tables and sentences anew from what is stored"
    )
    if changed:
        note += f"; {changed} of {len(anew.conclusions)} sentences read otherwise than those stored"
    notes = [f"{note}."]
    if missing:
        named = "; ".join(label(each) for each in missing[:MOST_NAMED])
        more = "; and others" if len(missing) > MOST_NAMED else ""
        notes.append(
            f"Not measured in this record: {len(missing)} of the cases that the study has today: "
            f"{named}{more}."
        )
    return msgspec.structs.replace(anew, notes=(*notes, *anew.notes))


def _missing(plan: tuple[Planned, ...], readings: Readings) -> tuple[Case, ...]:
    """The planned cases that were not measured.

    Raises:
        PeakwardError: some were, by another protocol alone.
    """
    measured = {each.case for each in readings}
    found = {case for case, protocol in plan if readings.find((case, protocol)) is not None}
    missing = tuple(dict.fromkeys(case for case, _ in plan if case not in found))
    elsewise = [case for case in missing if case in measured]
    if elsewise:
        raise PeakwardError(
            f"expected the study's protocol of today, got another one for {len(elsewise)} of its cases"
        )
    if measured and not found:
        raise PeakwardError("expected cases that the study has today, got none of them")
    return missing


def _readings(study: Study) -> Readings:
    readings = Readings(study.measurements)
    for profile in study.profiles:
        readings.add_profile(profile)
    for memory in study.memory:
        readings.add_memory(memory)
    readings.calibration = study.calibration
    return readings


def _setting(study: Study, scope: Scope) -> Setting:
    """The setting as far as the measurements show it: what was not tried where all was run could not be."""
    cases = [each.case for each in study.measurements]
    return Setting(
        scope=scope,
        environment=study.environment,
        has_compiler=not study.complete or any(map(_compiles, cases)),
        has_tokenizers=any(map(_has_byte_pairs, cases)),
        has_smollm2=any(map(_has_smollm2, cases)),
        has_torchao=any(map(_has_torchao, cases)),
        n_gpus=max(map(_n_gpus, cases), default=0),
    )


def _compiles(case: Case) -> bool:
    match case:
        case ModelCase() | ModuleCase():
            return case.configuration.compile != "none"
        case OperatorCase():
            return case.compile != "none" or case.attention == "flex"
        case MicroCase():
            return case.piece == "compiled" or _has_torchao(case)  # Its products are compiled.
        case _:
            return False


def _has_byte_pairs(case: Case) -> bool:
    data = case.workload.data if isinstance(case, ModelCase) else None
    return data is not None and data.tokenizer.name != "bytes"


def _has_smollm2(case: Case) -> bool:
    match case:
        case SpeculationCase():
            return True
        case QualityCase():
            return case.model is not None
        case NumericsCase():
            return case.way == "smollm2"
        case _:
            return False


def _has_torchao(case: Case) -> bool:
    return (isinstance(case, MicroCase) and case.piece.endswith("torchao")) or (
        isinstance(case, QualityCase) and case.way.endswith("torchao")
    )


def _n_gpus(case: Case) -> int:
    if case.device == "cpu":
        return 0
    if isinstance(case, CollectivesCase):
        return case.n_ranks
    return case.layout.n_ranks if isinstance(case, LayoutCase) else 1


def _day(study: Study) -> str:
    return study.started_at[:10]
