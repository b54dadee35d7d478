"""Reports of studies: of one by its name, and of several together."""

from collections.abc import Sequence

from peakward.records.study import Study
from peakward.report import run
from peakward.report import study as any_study
from peakward.report.document import Document, Section


def document(study: Study) -> Document:
    """The study's report.

    Raises:
        PeakwardError: a `run` without its baseline, or a figure that cannot be true.
    """
    return run.document(study) if study.name == "run" else any_study.document(study)


def together(found: Sequence[Document]) -> Document:
    """One document for several: each study's opening becomes a section, followed by its own sections."""
    if len(found) == 1:
        return found[0]
    sections: list[Section] = []
    for each in found:
        sections.append(Section(title=each.title, blocks=each.blocks))
        sections += [
            Section(title=f"{each.title}: {part.title}", blocks=part.blocks, folded=part.folded)
            for part in each.sections
        ]
    return Document(
        title="Studies",
        headline="; ".join(each.headline for each in found),
        sections=tuple(sections),
    )
