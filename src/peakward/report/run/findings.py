"""What holds back the baseline and the best, by the rules."""

from peakward.records.study import Study
from peakward.report import findings
from peakward.report.document import Block, Paragraph, Section
from peakward.report.run.investigation import Investigation

TITLE = "Findings"


def section(study: Study, read: Investigation) -> Section:
    """The baseline's, then the best's; empty where the study has no diagnosis."""
    by_case = {each.case: each for each in study.diagnoses}
    blocks: list[Block] = []
    for point in read.points:
        found = by_case.get(point.case)
        if found is not None:
            blocks.append(Paragraph(text=f"The {point.name}:"))
            blocks += findings.blocks(found, study.trials)
    return Section(title=TITLE, blocks=tuple(blocks))
