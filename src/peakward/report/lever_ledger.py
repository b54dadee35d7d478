"""The report of `peakward report --ledger`: the predictions of levers beside the measurements."""

from collections.abc import Iterable

from peakward.records.lever import Errors, LeverEntry, LeverLedger, Miss
from peakward.records.study import Cell, Column, Table
from peakward.report.cases import label
from peakward.report.columns import without_empty
from peakward.report.document import (
    Document,
    Fact,
    Facts,
    Items,
    Note,
    Paragraph,
    Section,
    TableBlock,
)
from peakward.report.format import MINUS, format_cell, format_spread

CONVENTIONS = (
    "A ratio is the candidate's step time, or peak allocated memory, over its base's: below 1 "
    "is faster, or smaller. Predicted ratios come from shapes and the device's rates, before "
    "the candidate was timed; nine in ten measured ratios should lie in the interval. "
    "Measured ratios are confirmed in pairs where that was done, else screened.",
    "Error: measured over predicted ratio, minus 1; tables show the median and the 90th "
    "percentile of its magnitude. Sign: among trials that measured more than 1% faster or "
    "slower, how often the prediction lay on the same side of 1.",
    "Each comparison counts once: a confirmation replaces its screening, and a run that "
    "reuses stored times adds nothing. Levers that cannot apply are not trials.",
)


def document(ledger: LeverLedger) -> Document:
    """The ledger by device and lever, then the worst predictions and the trials without one."""
    devices = tuple(dict.fromkeys(each.device for each in ledger.entries))
    sections = (
        *(_device(device, ledger) for device in devices),
        Section(
            title="Not predicted",
            blocks=_items(f"{_trials(each.n)}: {each.reason}." for each in ledger.unpredicted),
        ),
        Section(
            title="Conventions",
            blocks=tuple(Paragraph(text=text) for text in CONVENTIONS),
            folded=True,
        ),
    )
    sources = Fact(name="read from", value=", ".join(ledger.sources))
    return Document(
        title="Levers: predicted and measured",
        headline=_headline(ledger),
        blocks=(Facts(facts=(sources,)), *_impossible(ledger)),
        sections=tuple(section for section in sections if section.blocks),
    )


def _headline(ledger: LeverLedger) -> str:
    timed = [each for each in ledger.entries if each.time is not None]
    n = sum(each.time.n for each in timed if each.time is not None)
    if not n:
        return f"{_trials(ledger.n_trials)}, none with a predicted time"
    within = sum(each.n_within for each in timed)
    share = format_cell(within / n, "share")
    return (
        f"{_trials(ledger.n_trials)}; of {n} with a predicted time, {within} ({share}) measured "
        "within the predicted interval"
    )


def _impossible(ledger: LeverLedger) -> tuple[Note, ...]:
    if not ledger.impossible:
        return ()
    ids = ", ".join(each[:12] for each in ledger.impossible)
    return (
        Note(
            text=f"{_trials(len(ledger.impossible))} measured faster than the remaining work "
            f"allows, twice. This is an error of Peakward; no run keeps such a lever ({ids})."
        ),
    )


def _device(device: str, ledger: LeverLedger) -> Section:
    entries = [each for each in ledger.entries if each.device == device]
    worst = [each for each in ledger.worst if each.device == device]
    tables = (_times(entries), _memory(entries), _worst(worst))
    return Section(
        title=device,
        blocks=tuple(
            TableBlock(table=without_empty(table), sortable=True) for table in tables if table.rows
        ),
    )


def _times(entries: Iterable[LeverEntry]) -> Table:
    return Table(
        title="Step time",
        columns=(
            Column(name="lever", unit="name"),
            Column(name="trials", unit="count"),
            Column(name="gains confirmed", unit="count"),
            Column(name="rejected", unit="count"),
            Column(name="inconclusive", unit="count"),
            Column(name="numerics"),
            Column(name="predicted", unit="ratio"),
            Column(name="measured", unit="ratio"),
            Column(name="error", unit="share"),
            Column(name="p90", unit="share"),
            Column(name="interval held"),
            Column(name="sign right"),
        ),
        rows=tuple(map(_time_row, entries)),
        note="Ratios and errors are medians over the trials whose time was predicted.",
    )


def _time_row(entry: LeverEntry) -> tuple[Cell, ...]:
    return (
        entry.lever,
        entry.n_trials,
        entry.n_kept,
        entry.n_rejected,
        entry.n_inconclusive,
        _numerics(entry),
        *_four(entry.time),
        None if entry.time is None else f"{entry.n_within} of {entry.time.n}",
        f"{entry.n_sign_right} of {entry.n_decided}" if entry.n_decided else None,
    )


def _memory(entries: Iterable[LeverEntry]) -> Table:
    return Table(
        title="Peak memory",
        columns=(
            Column(name="lever", unit="name"),
            Column(name="trials", unit="count"),
            Column(name="predicted", unit="ratio"),
            Column(name="measured", unit="ratio"),
            Column(name="error", unit="share"),
            Column(name="p90", unit="share"),
        ),
        rows=tuple(
            (each.lever, each.memory.n, *_four(each.memory))
            for each in entries
            if each.memory is not None
        ),
        note="Trials are those with both ratios. A predicted peak has no interval.",
    )


def _worst(misses: Iterable[Miss]) -> Table:
    return Table(
        title="Worst predictions of time",
        columns=(
            Column(name="lever", unit="name"),
            Column(name="on"),
            Column(name="predicted (90% interval)"),
            Column(name="measured (95% interval)"),
            Column(name="error"),
            Column(name="verdict"),
            Column(name="trial"),
        ),
        rows=tuple(
            (
                each.lever,
                label(each.base),
                format_spread(each.predicted, "ratio"),
                format_spread(each.measured, "ratio"),
                ("+" if each.error > 0 else MINUS) + format_cell(abs(each.error), "share"),
                each.verdict,
                each.trial[:12],
            )
            for each in misses
        ),
    )


def _four(errors: Errors | None) -> tuple[Cell, ...]:
    if errors is None:
        return (None,) * 4
    return errors.predicted, errors.measured, errors.median, errors.p90


def _numerics(entry: LeverEntry) -> str | None:
    said = {"held": entry.n_numerics_held, "violated": entry.n_numerics_violated}
    return ", ".join(f"{n} {what}" for what, n in said.items() if n) or None


def _items(texts: Iterable[str]) -> tuple[Items, ...]:
    found = tuple(texts)
    return (Items(texts=found),) if found else ()


def _trials(n: int) -> str:
    return f"{n:,} trial{'' if n == 1 else 's'}"
