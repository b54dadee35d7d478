"""Where the time goes: beside one another, and only where something was profiled."""

import msgspec
import pytest

from peakward.report.document import Paragraph, TableBlock
from peakward.report.run import where
from peakward.report.run.investigation import read


def blocks(study):
    return where.section(study, read(study)).blocks


def tables(study):
    return {each.table.title: each.table for each in blocks(study) if isinstance(each, TableBlock)}


def test_baseline_and_best_side_by_side(run_study):
    found = tables(run_study)
    assert list(found) == [
        "The profiled steps",
        "Why the GPU was idle",
        "Work by phase and category",
        "The 5 kernels that take most time in the best",
    ]
    assert [row[0] for row in found["The profiled steps"].rows] == ["baseline", "best"]
    for _, span_s, busy_s, busy, idle in found["The profiled steps"].rows:
        assert busy_s / span_s == pytest.approx(busy)
        assert busy + idle == pytest.approx(1)
    for table in found.values():
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_three_causes_of_each_the_greatest_first(run_study):
    rows = tables(run_study)["Why the GPU was idle"].rows
    greatest = [max(each for each in row[1:] if each is not None) for row in rows]
    assert greatest == sorted(greatest, reverse=True)
    assert "the profiler itself" not in {row[0] for row in rows}, "it took no time"


def test_work_a_step_and_what_one_alone_does(run_study):
    rows = tables(run_study)["Work by phase and category"].rows
    by_key = {row[:2]: row[2:] for row in rows}
    assert by_key["forward", "matmul"][0] == pytest.approx(0.801 / 3)
    assert by_key["forward", "attention"][:2] == (None, None)
    assert ("optimizer", "memory") not in by_key, "less than a hundredth"


def test_it_is_said_where_the_profilers_times_are_used(run_study):
    assert blocks(run_study)[0].text == (
        "From 3 steps of the baseline and 3 steps of the best under a profiler, whose times only "
        "this section and the findings use."
    )


def test_only_what_was_profiled_is_shown(run_study):
    assert blocks(msgspec.structs.replace(run_study, profiles=())) == ()
    best = msgspec.structs.replace(run_study, profiles=run_study.profiles[1:])
    assert [column.name for column in tables(best)["Why the GPU was idle"].columns] == [
        "cause",
        "best",
    ]


def test_a_trace_without_work_shows_nothing(run_study):
    def emptied(each):
        together = msgspec.structs.replace(each.profile.breakdown.together, span_ns=0)
        breakdown = msgspec.structs.replace(each.profile.breakdown, together=together)
        found = msgspec.structs.replace(each.profile, breakdown=breakdown)
        return msgspec.structs.replace(each, profile=found)

    empty = msgspec.structs.replace(run_study, profiles=tuple(map(emptied, run_study.profiles)))
    assert blocks(empty) == ()


def test_what_a_trace_lacks_is_said(run_study):
    found = msgspec.structs.replace(run_study.profiles[0].profile, incomplete=("Half is missing.",))
    first = msgspec.structs.replace(run_study.profiles[0], profile=found)
    lacking = msgspec.structs.replace(run_study, profiles=(first,))
    assert blocks(lacking)[-1].text == "Baseline: Half is missing."


def test_the_absence_of_a_gpu_is_told_once_and_is_no_warning_on_a_cpu(run_study):
    lacking = ("The trace has no GPU work.",)
    profiles = tuple(
        msgspec.structs.replace(
            each, profile=msgspec.structs.replace(each.profile, incomplete=lacking)
        )
        for each in run_study.profiles
    )
    cpu = msgspec.structs.replace(run_study.environment, device_type="cpu")
    study = msgspec.structs.replace(run_study, profiles=profiles, environment=cpu)
    told = [each for each in blocks(study) if "no GPU work" in getattr(each, "text", "")]
    assert told == [Paragraph(text="Baseline and best: The trace has no GPU work.")]
