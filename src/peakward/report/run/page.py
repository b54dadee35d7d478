"""The layout of the report of `peakward run`, and its table of numerics."""

from statistics import fmean

import msgspec

from peakward.records.case import LeverCase, ModuleCase, StepCase
from peakward.records.lever import Trial
from peakward.records.study import Cell, Column, Plot, Study, Table
from peakward.report import provenance
from peakward.report.cases import model, settings, workload
from peakward.report.columns import spread_column, without_empty
from peakward.report.document import (
    Block,
    Command,
    Document,
    Fact,
    Facts,
    Figures,
    Note,
    Paragraph,
    PlotBlock,
    Section,
    TableBlock,
)
from peakward.report.format import format_cell, format_spread
from peakward.report.run import foretold, levers, memory, plots, sections, summary, where
from peakward.report.run.investigation import KnownConfiguration, RunParts, read
from peakward.report.run.levers import base_name
from peakward.report.run.summary import figures
from peakward.report.run.training import training_blocks
from peakward.report.run.warnings import warnings
from peakward.stats.pairs import reread


def document(study: Study) -> Document:
    """The whole report of a `run` study, from its record alone.

    Raises:
        PeakwardError: the study has no baseline, or a figure that cannot be true (MFU over 100%).
    """
    study = msgspec.structs.replace(study, trials=tuple(map(reread, study.trials)))
    found = read(study)
    return Document(
        title=_title(study, found),
        headline=_result(study, found),
        blocks=_opening(study, found),
        sections=tuple(
            section
            for section in (
                _composition(found),
                sections.findings_section(study, found),
                _floor(study, found),
                foretold.section(study, found),
                where.section(study, found),
                memory.section(study, found),
                _levers(study, found),
                sections.guesses_section(study),
                sections.batches_section(study),
                plots.pareto_section(study, found),
                _validity(found),
                _numerics(study, found),
                provenance.notes(study),
                _reproduction(study, found),
                provenance.conventions(),
                provenance.environment(study),
            )
            if section.blocks
        ),
    )


def _title(study: Study, found: RunParts) -> str:
    case = found.baseline.case
    work = "" if isinstance(case, StepCase) else f" {workload(case.workload)}"
    return f"{case.name}{work} on {study.environment.device_name}"


def _result(study: Study, found: RunParts) -> str:
    if found.best is None:
        step_s = found.baseline.step_s
        step = (
            "the baseline gave no time" if step_s is None else f"{format_cell(step_s, 's')} a step"
        )
        return f"{step}; {_kept_nothing(study)}"
    times = f"{_time(found.baseline)} → {_time(found.best)} a step"
    if (speedup := found.speedup) is not None:
        faster = f"{format_cell(speedup.estimate, 'ratio')} the baseline's speed"
        # Medians that visibly disagree with the pairs would contradict the ratio on its own line.
        drifted = found.alone is not None
        times = f"{faster}, {speedup.basis}" if drifted else f"{faster}, {times}"
        if found.best.measurement is None and not drifted:  # It was timed in pairs alone.
            times = (
                f"{format_cell(speedup.estimate, 'ratio')} the speed of the baseline's "
                f"{_time(found.baseline)} a step"
            )
    kept = " + ".join(trial.lever for trial in found.steps)
    said = "; ".join((*_saved(found), times))
    return f"{said}, with {kept}" if kept else said


def _saved(found: RunParts) -> tuple[str, ...]:
    """The savings beside time that the steps were kept for."""
    judged = {trial.judged_by for trial in found.steps}
    said = []
    uses = [point.measurement and point.measurement.memory for point in found.points]
    if "memory" in judged and all(uses):
        peaks = (format_cell(use.peak_allocated_bytes, "bytes") for use in uses if use)
        said.append(f"{' → '.join(peaks)} of peak memory")
    if "energy" in judged and found.direct and found.direct.energy_ratio:
        ratio = format_cell(found.direct.energy_ratio.estimate, "ratio")
        said.append(f"{ratio} the baseline's energy a step")
    return tuple(said)


def _time(point: KnownConfiguration) -> str:
    if point.step_s is None:
        return summary.status(point.measurement)
    return format_cell(point.step_s, "s")


def _kept_nothing(study: Study) -> str:
    tried = len({name for each in study.trials if each.stage != "refused" for name in each.levers})
    levers_ = f"{tried} lever{'' if tried == 1 else 's'} tried"
    return f"no gain confirmed among {levers_}" if tried else "no lever was tried"


def _opening(study: Study, found: RunParts) -> tuple[Block, ...]:
    """How to have the best, then warnings, limits and remedies, before any table."""
    bars = plots.step_times(found)
    shown = figures(found)
    return (
        *sections.panel(study, found),
        *((Figures(figures=shown),) if shown else ()),
        *(Note(text=text) for text in warnings(study, found)),
        *sections.first_findings(study, found),
        *(Note(text=text) for text in levers.unconfirmed(study, found)),
        _facts(study, found),
        *_plots(bars),
    )


def _facts(study: Study, found: RunParts) -> Facts:
    case = found.baseline.case
    facts = {
        "step" if isinstance(case, StepCase) else "model": _model(case, found),
        "workload": _work(case),
        **_waited(found),
        "baseline": ", ".join(settings(case)),
    }
    if found.best is not None:
        facts["best"] = ", ".join(settings(found.best.case))
    if case.memory_limit_bytes is not None:
        facts["memory limit"] = format_cell(case.memory_limit_bytes, "bytes")
    facts["device"] = provenance.device(study.environment)
    facts["software"] = provenance.software(study.environment)
    return Facts(facts=tuple(Fact(name=name, value=value) for name, value in facts.items()))


def _work(case: LeverCase) -> str:
    said = "a step given as a function" if isinstance(case, StepCase) else workload(case.workload)
    if case.tokens_per_step is None:
        return said
    n = case.tokens_per_step
    return f"{said}: {format_cell(n, 'count')} {'token' if n == 1 else 'tokens'} a step"


def _waited(found: RunParts) -> dict[str, str]:
    """The cost of a live step's own loader."""
    measured = found.baseline.measurement
    if measured is None or measured.loader is None or not measured.loader.wait_s:
        return {}
    waits = measured.loader
    mean = format_cell(fmean(waits.wait_s), "s")
    first = format_cell(waits.first_wait_s, "s")
    idle = ""
    if waits.idle_s is not None:
        idle = f", the GPU idle for {format_cell(fmean(waits.idle_s), 's')} of it"
    return {"loader": f"{mean} of a step waited for its batch (mean){idle}; {first} for the first"}


def _model(case: LeverCase, found: RunParts) -> str:
    counts = [point.measurement.n_parameters for point in found.points if point.measurement]
    count = next((count for count in counts if count is not None), None)
    if isinstance(case, ModuleCase):
        counted = "" if count is None else f", {count:,} parameters"
        return f"{case.source}{counted} (fingerprint {case.fingerprint})"
    if isinstance(case, StepCase):
        counted = "" if count is None else f", {count:,} parameters"
        return f"{case.name}{counted}"
    return model(case.model, count)


def _floor(study: Study, found: RunParts) -> Section:
    tables = [summary.phase_table(point) for point in found.points]
    blocks: list[Block] = [*_tables(summary.speed_table(found), *tables)]
    rates = summary.ceilings(study, found)
    if rates.facts:
        blocks += [Paragraph(text="The ceilings behind the floors:"), rates]
    blocks += _plots(plots.roofline(found))
    return Section(title="Floor and measured time", blocks=tuple(blocks))


def _levers(study: Study, found: RunParts) -> Section:
    if not study.trials:
        return Section(title="Levers", blocks=())
    table = levers.lever_table(study, found)
    blocks: list[Block] = []
    if table.rows:
        blocks.append(TableBlock(table=without_empty(table), sortable=True))
    if (refused := levers.inapplicable(study)) is not None:
        blocks.append(Paragraph(text=refused))
    return Section(title="Levers", blocks=tuple(blocks))


def _composition(found: RunParts) -> Section:
    composed = levers.composition_table(found) if found.best and found.steps else None
    return Section(
        title="Best composition",
        blocks=_tables(composed, *summary.linear_tables(found)),
    )


def _reproduction(study: Study, found: RunParts) -> Section:
    section = provenance.reproduction(study)
    baseline: tuple[Block, ...] = ()
    if found.best is None and study.best_command is not None:
        again = "To measure the baseline again:"
        baseline = (Paragraph(text=again), Command(text=study.best_command))
    return Section(title=section.title, blocks=(*section.blocks, *baseline))


def _validity(found: RunParts) -> Section:
    tables = _tables(
        summary.statistics_table(found),
        summary.compile_table(found),
        summary.telemetry_table(found),
    )
    return Section(title="Validity", blocks=tables)


def _numerics(study: Study, found: RunParts) -> Section:
    tables = numerics_table(study, found), quality_table(study, found)
    return Section(title="Numerics", blocks=(*_tables(*tables), *training_blocks(study)))


def _tables(*tables: Table | None) -> tuple[TableBlock, ...]:
    return tuple(TableBlock(table=without_empty(each)) for each in tables if each is not None)


def _plots(plot: Plot | None) -> tuple[PlotBlock, ...]:
    return () if plot is None else (PlotBlock(plot=plot),)


def numerics_table(study: Study, read: RunParts) -> Table | None:
    """For each tried lever the error nearest its bound; None where no error was computed."""
    # A confirmed trial repeats its screening's verdict: a dict keeps one of equal rows, in order.
    rows = dict.fromkeys(row for trial in study.trials for row in _rows(trial, read))
    if not rows:
        return None
    return Table(
        title="",
        columns=(
            Column(name="lever"),
            Column(name="on"),
            Column(name="class"),
            Column(name="verdict"),
            Column(name="quantity"),
            Column(name="error", unit="count"),
            Column(name="base's error", unit="count"),
            Column(name="bound", unit="count"),
            Column(name="reason"),
        ),
        rows=tuple(rows),
        note="For each lever, the quantity whose error is nearest its bound. Losses are those of 16 steps "
        "of training, which are taken where they last no longer than 2 s in fp64.",
    )


def _rows(trial: Trial, read: RunParts) -> tuple[tuple[Cell, ...], ...]:
    numerics = trial.numerics
    if numerics is None:
        return ()
    worst = max(numerics.errors, key=lambda each: each.share_of_bound, default=None)
    figures: tuple[Cell, ...] = (None, None, None, None)
    if worst is not None:
        figures = (worst.quantity, worst.candidate_error, worst.base_error, worst.bound)
    names = (trial.lever, base_name(trial.base, read), numerics.declared, numerics.verdict)
    return ((*names, *figures, numerics.reason),)


def quality_table(study: Study, read: RunParts) -> Table | None:
    """For each tried lever that keeps fewer bits, what a real model loses by it; None without one."""
    found = dict.fromkeys(
        (trial.lever, base_name(trial.base, read), trial.numerics.quality)
        for trial in study.trials
        if trial.numerics is not None and trial.numerics.quality is not None
    )
    if not found:
        return None
    return Table(
        title="Loss on real text",
        columns=(
            Column(name="lever"),
            Column(name="on"),
            Column(name="verdict"),
            Column(name="model"),
            Column(name="text"),
            Column(name="base's loss", unit="count"),
            spread_column("more loss"),
            Column(name="bound", unit="count"),
            Column(name="reason"),
        ),
        rows=tuple(
            (
                lever,
                on,
                each.verdict,
                each.model,
                each.text,
                each.loss,
                None if each.more_loss is None else format_spread(each.more_loss, "count"),
                each.bound,
                each.reason,
            )
            for lever, on, each in found
        ),
        note="In nats a token. More loss is the candidate's less the base's on the same stretches of text; "
        "its whole interval must be within the bound.",
    )
