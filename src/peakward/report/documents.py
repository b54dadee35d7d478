"""The report of any study, by its name."""

from peakward.records.study import Study
from peakward.report import run
from peakward.report import study as any_study
from peakward.report.document import Document


def document(study: Study) -> Document:
    """The study's report.

    Raises:
        PeakwardError: a `run` without its baseline, or a figure that cannot be true.
    """
    return run.document(study) if study.name == "run" else any_study.document(study)
