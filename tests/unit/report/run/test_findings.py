"""The findings of a run's cases."""

import msgspec

from peakward.records.finding import Diagnosis
from peakward.report.run import findings
from peakward.report.run.investigation import read


def nothing(case):
    return Diagnosis(
        subject="", case=case, whole_s=None, basis=None, findings=(), abstentions=(), clean=("A",)
    )


def said(study):
    return [each.text for each in findings.section(study, read(study)).blocks]


def test_the_baseline_then_the_best(studies, run_study):
    both = (nothing(studies.BEST), nothing(studies.BASELINE))
    shown = said(msgspec.structs.replace(run_study, diagnoses=both))
    assert shown[0] == "The baseline:"
    assert shown[2] == "The best:"


def test_older_studies_have_none(run_study):
    old = msgspec.structs.replace(run_study, diagnoses=())
    section = findings.section(old, read(old))
    assert section.blocks == ()
