"""Every tried lever with its numbers, verdict and reason; then the kept ones."""

from collections import Counter

from peakward.records.case import LeverCase
from peakward.records.lever import Trial
from peakward.records.study import Cell, Column, Study, Table
from peakward.report.cases import brief, changes
from peakward.report.columns import spread_column
from peakward.report.format import format_cell, format_spread
from peakward.report.run.investigation import (
    RunParts,
    cumulative_speedups,
)
from peakward.stats.pairs import inverted


def lever_table(study: Study, read: RunParts) -> Table:
    """One row for each trial that ran or was computed, in order."""
    return Table(
        title="",
        columns=(
            Column(name="lever"),
            Column(name="on"),
            Column(name="stage"),
            Column(name="verdict"),
            Column(name="in the best"),
            spread_column("speed-up"),
            Column(name="predicted", unit="ratio"),
            Column(name="memory change", unit="share"),
            Column(name="numerics"),
            Column(name="reason"),
        ),
        rows=tuple(_row(trial, read) for trial in study.trials if not _cannot_apply(trial)),
        note=_tally(study),
    )


def composition_table(read: RunParts) -> Table:
    """The levers in the best, in the order in which they were added."""
    totals = cumulative_speedups(read.steps)
    rows: list[tuple[Cell, ...]] = []
    for number, (trial, total) in enumerate(zip(read.steps, totals, strict=True), start=1):
        ratio = inverted(trial.time_ratio) if trial.time_ratio else None
        rows.append(
            (
                f"step {number}",
                trial.lever,
                trial.stage,
                verdict(trial),
                format_spread(ratio, "ratio") if ratio else None,
                total,
                trial.candidate_peak_bytes,
            )
        )
    return Table(
        title="",
        columns=(
            Column(name="step"),
            Column(name="lever"),
            Column(name="stage"),
            Column(name="verdict"),
            spread_column("speed-up"),
            Column(name="cumulative", unit="ratio"),
            Column(name="peak memory", unit="bytes"),
        ),
        rows=tuple(rows),
        note=_product_note(read, totals),
    )


def _product_note(read: RunParts, totals: tuple[float | None, ...]) -> str:
    """Why the product differs from the speed-up at the head of the report, with both numbers."""
    said = "Cumulative is the product of the steps' speed-ups"
    total, speedup = totals[-1] if totals else None, read.speedup
    if total is None or speedup is None:
        return f"{said}."
    product, whole = format_cell(total, "ratio"), format_cell(speedup.estimate, "ratio")
    if product == whole:
        return f"{said}."
    return (
        f"{said}; {product} here differs from {whole} above ({speedup.basis}), which is the result."
    )


def inapplicable(study: Study) -> str | None:
    """The levers that were refused before anything ran, grouped by reason in one sentence."""
    by_reason: dict[str, dict[str, None]] = {}
    for trial in study.trials:
        if _cannot_apply(trial):
            by_reason.setdefault(trial.reason, {})[trial.lever] = None
    groups = [f"{', '.join(levers)} ({reason})" for reason, levers in by_reason.items()]
    return f"Not applicable here: {'; '.join(groups)}." if groups else None


def impossible(study: Study) -> tuple[str, ...]:
    """A sentence for each gain beyond what the rest of the step allows."""
    return tuple(
        f"Not believed: {trial.lever} measured {trial.reason}."
        for trial in study.trials
        if trial.bound is not None and trial.bound.broken
    )


def _cannot_apply(trial: Trial) -> bool:
    """Whether the lever was refused before anything was computed. A lever refused for its numerics keeps its
    row."""
    return trial.stage == "refused" and trial.numerics is None


def unconfirmed(study: Study, read: RunParts) -> tuple[str, ...]:
    """One sentence for each result that pairs did not confirm: further gains on top of the best, and the
    whole.

    Gains on an abandoned base are left out, and so are gains whose interval holds 1.
    """
    reached = read.best.case if read.best is not None else read.baseline.case
    screened = [
        f"{trial.lever} ({format_spread(inverted(trial.time_ratio), 'ratio')})"
        for trial in study.trials
        if trial.stage == "screened"
        and trial.verdict != "rejected"
        and trial.base == reached
        and trial.time_ratio is not None
        and trial.time_ratio.high < 1
    ]
    name = base_name(reached, read)
    levers = (
        (f"Faster when screened on {name}, not confirmed: {', '.join(screened)}.",)
        if screened
        else ()
    )
    whole = _whole(read) if read.best is not None else None
    return levers if whole is None else (*levers, whole)


def _whole(read: RunParts) -> str | None:
    """A note where the best itself was not confirmed against the baseline."""
    if read.direct is None or read.direct.stage != "confirmed":
        return "Not confirmed: the best against the baseline, in its own pairs."
    if read.direct.verdict != "kept":
        return f"Not confirmed: the best against the baseline, {read.direct.reason}."
    return None


def base_name(case: LeverCase, read: RunParts) -> str:
    """`baseline`, the composition step that ends in the case, or the settings that distinguish it."""
    if case == read.baseline.case:
        return "baseline"
    for number, trial in enumerate(read.steps, start=1):
        if trial.candidate == case:
            return f"step {number}"
    return changes(case, read.baseline.case)


def verdict(trial: Trial) -> str:
    """The verdict in words, or the refusal before anything was timed."""
    if trial.stage == "refused":
        return "refused"
    if trial.verdict == "kept":
        # A lever that makes a failing base run has no ratio to it.
        return "makes it run" if trial.ratio is None else "gain confirmed"
    return trial.verdict


def _row(trial: Trial, read: RunParts) -> tuple[Cell, ...]:
    ratio = inverted(trial.time_ratio) if trial.time_ratio else None
    failed = None if trial.status == "ok" else trial.status
    return (
        trial.lever,
        base_name(trial.base, read),
        None if trial.stage == "refused" else trial.stage,
        verdict(trial),
        _place(trial, read),
        format_spread(ratio, "ratio") if ratio else failed,
        _predicted(trial),
        memory_change(trial),
        trial.numerics.verdict if trial.numerics else None,
        brief(trial.reason),
    )


def _place(trial: Trial, read: RunParts) -> str | None:
    """The composition step that the trial is; None where it is none."""
    ids = [each.id for each in read.steps]
    return f"step {ids.index(trial.id) + 1}" if trial.id in ids else None


def _predicted(trial: Trial) -> float | None:
    """The predicted speed-up."""
    told = trial.foretold.time_ratio if trial.foretold else None
    return None if told is None else 1 / told.estimate


def memory_change(trial: Trial) -> float | None:
    """The change of the peak as a share of the base's; None where one of them is not known."""
    if not trial.base_peak_bytes or trial.candidate_peak_bytes is None:
        return None
    return trial.candidate_peak_bytes / trial.base_peak_bytes - 1


def _tally(study: Study) -> str | None:
    counts = Counter(verdict(trial) for trial in study.trials)
    parts = [
        f"{counts[each]} {each}"
        for each in ("gain confirmed", "makes it run", "rejected", "inconclusive", "refused")
        if counts[each]
    ]
    return f"Trials: {', '.join(parts)}." if parts else None
