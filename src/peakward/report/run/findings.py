"""The findings about the baseline and the best."""

from peakward.records.study import Study
from peakward.report import findings
from peakward.report.document import Block, Paragraph, Section
from peakward.report.run.investigation import Investigation

TITLE = "Findings"


def first(study: Study, read: Investigation) -> tuple[Block, ...]:
    """The most important findings of the best, because its levers already mended others; those of the
    baseline where the best has none."""
    by_case = {each.case: each for each in study.diagnoses}
    pulled = {trial.lever for trial in read.steps}
    for point in reversed(read.points):
        found = by_case.get(point.case)
        if found is not None and found.findings:
            return findings.first(found, f"the {point.name}", pulled)
    return ()


def section(study: Study, read: Investigation) -> Section:
    """The baseline's diagnosis, then the best's; empty where the study has none."""
    by_case = {each.case: each for each in study.diagnoses}
    blocks: list[Block] = []
    for point in read.points:
        found = by_case.get(point.case)
        if found is not None:
            blocks.append(Paragraph(text=f"The {point.name}:"))
            blocks += findings.blocks(found, study.trials)
    return Section(title=TITLE, blocks=tuple(blocks))
