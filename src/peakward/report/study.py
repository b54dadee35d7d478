"""Reports of studies: of any but `run` by its own tables, plots and conclusions, and of several together."""

import re
from collections.abc import Sequence

from peakward.records.measurement import Measurement
from peakward.records.study import Column, Conclusion, Study, Table
from peakward.report import provenance, run
from peakward.report.cases import brief, label
from peakward.report.document import (
    Block,
    Document,
    Fact,
    Facts,
    Items,
    Note,
    PlotBlock,
    Section,
    TableBlock,
)
from peakward.report.format import format_cell, format_duration
from peakward.report.plots import drawable


def of_any_study(study: Study) -> Document:
    """The whole report of a study, from its record alone."""
    sections = (
        Section(
            title="Results",
            blocks=tuple(TableBlock(table=each, sortable=True) for each in study.tables),
        ),
        Section(
            title="Plots", blocks=tuple(PlotBlock(plot=plot) for plot in drawable(study.plots))
        ),
        Section(title="Cases that did not run", blocks=_failed(study.measurements)),
        provenance.notes(study),
        provenance.reproduction(study),
        Section(title="Evidence", blocks=_evidence(study.conclusions), folded=True),
        provenance.conventions(),
        provenance.environment(study),
    )
    return Document(
        title=study.title,
        headline=_result(study),
        blocks=_opening(study),
        sections=tuple(section for section in sections if section.blocks),
    )


def _result(study: Study) -> str:
    if study.complete and not study.measurements:
        if study.calibration is None:
            return "Computed from published figures: nothing was measured"
        return f"Calibration of {study.environment.device_name}"
    n_failed = sum(each.status != "ok" for each in study.measurements)
    cases = f"{len(study.measurements)} case{'' if len(study.measurements) == 1 else 's'}"
    failed = f", {n_failed} of them not ok" if n_failed else ""
    return f"{cases} on {study.environment.device_name}{failed}"


def _opening(study: Study) -> tuple[Block, ...]:
    blocks: list[Block] = []
    if not study.complete:
        blocks.append(
            Note(
                text="The command was interrupted. The results here are valid; cases of the grid are "
                "missing."
            )
        )
    if study.conclusions:
        blocks.append(Items(texts=tuple(each.text for each in study.conclusions)))
    facts = {
        "device": provenance.device(study.environment),
        "software": provenance.software(study.environment),
        "took": format_duration(study.wall_s),
    }
    blocks.append(Facts(facts=tuple(Fact(name=name, value=text) for name, text in facts.items())))
    return tuple(blocks)


def _failed(measurements: tuple[Measurement, ...]) -> tuple[Block, ...]:
    rows = tuple(
        (label(each.case), each.told, brief(each.reason))
        for each in measurements
        if each.status != "ok"
    )
    if not rows:
        return ()
    columns = (Column(name="case", unit="name"), Column(name="status"), Column(name="reason"))
    return (TableBlock(table=Table(title="", columns=columns, rows=rows)),)


def _evidence(conclusions: tuple[Conclusion, ...]) -> tuple[Block, ...]:
    """Each conclusion once, over its numbers."""
    columns = tuple(Column(name=name) for name in ("quantity", "value", "computed from"))
    return tuple(
        TableBlock(
            table=Table(
                title=conclusion.text,
                columns=columns,
                rows=tuple(
                    (
                        each.quantity,
                        format_cell(each.value, each.unit),
                        ", ".join(map(_short, each.from_ids)),
                    )
                    for each in conclusion.evidence
                ),
            )
        )
        for conclusion in conclusions
        if conclusion.evidence
    )


def _short(source: str) -> str:
    """The digits of an id that the list of studies shows too. The name of a catalogued thing stays whole."""
    return source[:12] if re.fullmatch("[0-9a-f]{32,}", source) else source


def document(study: Study) -> Document:
    """The study's report.

    Raises:
        PeakwardError: a `run` without its baseline, or a figure that cannot be true.
    """
    return run.document(study) if study.name == "run" else of_any_study(study)


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
