"""Short sections of a run's report: findings, larger batches, and the best composition as the user's code."""

from peakward.levers.in_code import in_program
from peakward.records.case import ModuleCase
from peakward.records.study import Study
from peakward.report import findings
from peakward.report.document import Block, Code, Items, Paragraph, Section, TableBlock
from peakward.report.run.investigation import RunParts

FINDINGS_TITLE = "Findings"


def first_findings(study: Study, read: RunParts) -> tuple[Block, ...]:
    """The most important findings of the best, because its levers already mended others; those of the
    baseline where the best has none."""
    by_case = {each.case: each for each in study.diagnoses}
    pulled = {name for trial in read.steps for name in trial.levers}
    for point in reversed(read.points):
        found = by_case.get(point.case)
        if found is not None and found.findings:
            return findings.first(found, f"the {point.name}", pulled)
    return ()


def findings_section(study: Study, read: RunParts) -> Section:
    """The baseline's diagnosis, then the best's; empty where the study has none."""
    by_case = {each.case: each for each in study.diagnoses}
    blocks: list[Block] = []
    for point in read.points:
        found = by_case.get(point.case)
        if found is not None:
            blocks.append(Paragraph(text=f"The {point.name}:"))
            blocks += findings.blocks(found, study.trials)
    return Section(title=FINDINGS_TITLE, blocks=tuple(blocks))


BATCHES_TITLE = "Throughput by batch size"
"""The title of the table in such a study."""


def batches_section(study: Study) -> Section:
    """The table of batches; empty where none was measured."""
    tables = [table for table in study.tables if table.title == BATCHES_TITLE]
    said = tuple(each.text for each in study.conclusions) if tables else ()
    blocks = (
        *(TableBlock(table=table) for table in tables),
        *((Items(texts=said),) if said else ()),
    )
    return Section(title="Larger batches", blocks=blocks)


def code_section(base: ModuleCase, best: ModuleCase) -> Section:
    """The settings of the best that differ from the base, as code."""
    lines = in_program(
        best.configuration, base.configuration, best.device, trains=best.workload.trains
    )
    blocks: list[Block] = []
    if lines.once:
        blocks += [
            Paragraph(
                text="Once, in this order, after the model is built. `blocks` are the model's "
                "repeated blocks, `lr` is your learning rate:"
            ),
            Code(text="\n".join(lines.once)),
        ]
    if lines.each_step:
        blocks += [Paragraph(text="In each step:"), Code(text="\n".join(lines.each_step))]
    return Section(title="In your own code", blocks=tuple(blocks))
