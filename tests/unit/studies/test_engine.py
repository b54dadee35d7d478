"""What the engine plans and gathers of a specification, and the rows that come of it."""

import msgspec
import pytest

from peakward.models.presets import model
from peakward.records.study import Conclusion
from peakward.studies.cases import model_case, with_levers
from peakward.studies.engine import CANNOT_RUN, Point, Row, Study, row
from peakward.studies.readings import Readings
from peakward.studies.recorder import Recorder
from peakward.studies.values import MEDIAN, PEAK, PRECISION, STATUS, table


def points(setting):
    """fp32, and bf16 held against it; tf32 as a machine without it has it."""
    protocol = setting.protocol()
    plain = model_case(model("small"), 1, 128, "forward", setting.device)
    for precision, also, absent in (
        ("fp32", None, None),
        ("bf16", "profile", None),
        ("tf32", "profile", "no tensor cores"),
    ):
        case = with_levers(plain, precision=precision)
        yield Point(
            case=case,
            protocol=protocol,
            name=precision,
            base=(plain, protocol),
            absent=absent,
            also=also,
        )


def slowest(view):
    timed = [each for each in view.rows if each.time]
    if timed:
        yield Conclusion(text=max(timed, key=lambda each: each.median_s).name, evidence=())


STUDY = Study(
    title="Which precision?",
    points=points,
    tables=(table("All", (PRECISION, STATUS, MEDIAN, PEAK)),),
    claims=(slowest,),
    notes=lambda view: [f"On {view.setting.device}."],
)


@pytest.fixture
def rows_of(gathered, setting):
    def make(**options):
        here = setting()
        readings = gathered(STUDY, here, **options)
        return {each.name: each for each in (row(point, readings) for point in points(here))}

    return make


def test_what_cannot_run_is_not_planned(setting):
    assert [case.configuration.precision for case, _ in STUDY.plan(setting())] == ["fp32", "bf16"]


def test_a_point_that_occurs_twice_is_planned_once(setting):
    twice = msgspec.structs.replace(STUDY, points=lambda here: [*points(here), *points(here)])
    assert twice.plan(setting()) == STUDY.plan(setting())


def test_all_is_timed_before_anything_is_profiled(setting, lab):
    here = setting()
    made = lab(here)
    recorder, seen = Recorder(made), []
    recorder.profile = lambda planned: seen.append((planned, len(made.asked)))
    STUDY.gather(recorder, here)
    assert seen == [(STUDY.plan(here)[1], 2)]


def test_ceilings_and_a_search_are_run_where_the_study_has_them(setting, lab):
    here, seen = setting(), []
    asks = msgspec.structs.replace(
        STUDY,
        needs_ceilings=True,
        search=lambda recorder, _setting: seen.append(len(recorder.readings)),
    )
    recorder = Recorder(lab(here))
    asks.gather(recorder, here)
    assert recorder.readings.calibration is not None
    assert seen == [2], "after the grid"
    assert gathered_without(STUDY, lab, here).calibration is None


def gathered_without(study, lab, here):
    recorder = Recorder(lab(here))
    study.gather(recorder, here)
    return recorder.readings


def test_parts_are_told_of_all_points_run_or_not(setting, gathered, rows):
    here = setting()
    parts = STUDY.parts(gathered(STUDY, here, stop_after=None), here)
    (found,) = parts.tables
    assert [each["status"] for each in rows(found)] == ["ok", "ok", "not available"]
    assert [each.text for each in parts.conclusions] == ["fp32"]
    assert parts.notes == ("On cuda.",)
    nothing = STUDY.parts(Readings(), here)
    assert [each["status"] for each in rows(nothing.tables[0])] == [
        "not run",
        "not run",
        "not available",
    ]
    assert nothing.conclusions == ()


def test_a_row_stands_beside_its_base(rows_of):
    faster = rows_of()["bf16"]
    assert faster.speed.estimate == pytest.approx(8)
    assert faster.over_base.estimate == pytest.approx(1 / 8)
    # Both medians are known to 1%: the ends lie outside of the quotient's.
    assert faster.speed.low < 8 * 0.99 < 8 * 1.01 < faster.speed.high
    assert not faster.is_slower


def test_of_a_row_that_failed_nothing_is_compared(rows_of):
    failed = rows_of(overrule=lambda case: "oom" if "bf16" in repr(case) else None)["bf16"]
    assert (failed.time, failed.speed, failed.over_base) == (None,) * 3
    assert (failed.is_slower, failed.peak_bytes) == (False, None)
    assert (failed.status, failed.reason, failed.absence) == ("oom", "because oom", "out of memory")


def test_slower_means_beyond_both_intervals(setting, measure):
    here = setting()
    plain, other, _ = points(here)
    base = measure(*plain.planned, here.environment)

    def beside(factor):
        # Eight times its formula's time is that of fp32.
        made = measure(*other.planned, here.environment, factor=8 * factor)
        return Row(point=other, measurement=made, base=base)

    assert beside(1.05).is_slower
    assert not beside(1.015).is_slower
    assert not beside(0.9).is_slower


def test_why_a_row_has_no_time(rows_of, measure, setting):
    rows = rows_of()
    assert (rows["tf32"].absence, rows["tf32"].reason) == (CANNOT_RUN, "no tensor cores")
    assert rows["bf16"].absence is None
    unseen = Row(point=rows["bf16"].point)
    assert (unseen.absence, unseen.status, unseen.reason) == ("not run", "not run", None)
