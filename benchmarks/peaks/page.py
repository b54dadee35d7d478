"""The findings as a document."""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from accuracy.tables import Columns, table
from peaks.judge import BAND
from peaks.records import MemoryAccuracy, Peak, Verdict
from peakward.report.document import Document, Items, Section, TableBlock
from peakward.report.format import format_cell

N_WORST = 10
READ_FIRST = (
    "An error is the predicted peak of allocated bytes over the measured one, less one. Each case "
    "counts once a device.",
    "Of compiled cases the basis says whether the compiled step itself is predicted or the same "
    "step uncompiled.",
    "Reserved bytes are compared where no limit was set: near one the allocator returns what it has "
    "free.",
    f"Whether a case fits is judged on reserved bytes and the context, against how it really ended "
    f"under that limit; what needs within {BAND:.0%} of the limit is not counted.",
)


def document(found: MemoryAccuracy) -> Document:
    """The report."""
    return Document(
        title="Accuracy of predicted peak memory",
        headline=_headline(found),
        blocks=(Items(texts=READ_FIRST),),
        sections=(
            Section(title="By kind", blocks=(_kinds(found),)),
            Section(title="Whether it fits", blocks=(_verdicts(found), _wrong(found.verdicts))),
            Section(title="The worst", blocks=(_cases(_worst_first(found.peaks)[:N_WORST]),)),
            Section(title="Not predicted", blocks=(_refused(found),)),
            Section(title="Every case", blocks=(_cases(_worst_first(found.peaks)),), folded=True),
        ),
    )


def _headline(found: MemoryAccuracy) -> str:
    every = found.groups[0]
    middle, p90, worst = (
        format_cell(each, "share") for each in (every.median, every.p90, every.worst)
    )
    right, wrong, untold = (
        sum(getattr(each, name) for each in found.verdict_groups)
        for name in ("right", "wrong", "untold")
    )
    return (
        f"{every.n} peaks: median error {middle}, nine in ten below {p90}, worst {worst}; of "
        f"{right + wrong + untold} verdicts on fitting {right} are right, {wrong} wrong, {untold} "
        "left open."
    )


def _kinds(found: MemoryAccuracy) -> TableBlock:
    columns: Columns = (
        ("kind", "name"),
        ("", "name"),
        ("cases", "count"),
        ("median error", "share"),
        ("nine in ten below", "share"),
        ("worst", "share"),
        ("median signed", "share"),
        ("reserved: median error", "share"),
        ("worst", "share"),
    )
    row = attrgetter(
        "kind", "value", "n", "median", "p90", "worst", "bias", "reserved_median", "reserved_worst"
    )
    return table("Errors of predicted peaks", columns, map(row, found.groups))


def _verdicts(found: MemoryAccuracy) -> TableBlock:
    columns: Columns = (
        ("device", "name"),
        ("limit", "name"),
        ("cases", "count"),
        ("near it", "count"),
        ("right", "count"),
        ("wrong", "count"),
        ("left open", "count"),
    )
    row = attrgetter("device", "limit", "n", "near", "right", "wrong", "untold")
    return table("Verdicts by limit", columns, map(row, found.verdict_groups))


def _wrong(verdicts: Iterable[Verdict]) -> TableBlock:
    columns: Columns = (
        ("case", "name"),
        ("device", "name"),
        ("limit", "bytes"),
        ("needed, predicted", "bytes"),
        ("from the limit", "share"),
        ("ended", "text"),
    )
    row = attrgetter("label", "device", "limit_bytes", "needed_bytes", "distance", "ended")
    wrong = [each for each in verdicts if each.right is False]
    return table("Wrong, near the limit or not", columns, map(row, wrong))


def _cases(peaks: Iterable[Peak]) -> TableBlock:
    columns: Columns = (
        ("case", "name"),
        ("device", "name"),
        ("measured", "bytes"),
        ("predicted", "bytes"),
        ("error", "share"),
        ("reserved", "share"),
        ("peak in", "text"),
        ("basis", "text"),
    )
    row = attrgetter(
        "label",
        "device",
        "measured_bytes",
        "predicted.total_bytes",
        "error",
        "reserved_error",
        "phase",
        "basis",
    )
    return table("", columns, map(row, peaks))


def _worst_first(peaks: Sequence[Peak]) -> list[Peak]:
    return sorted(peaks, key=lambda each: -abs(each.error))


def _refused(found: MemoryAccuracy) -> TableBlock:
    columns: Columns = (("reason", "name"), ("cases", "count"))
    return table("", columns, map(attrgetter("reason", "n"), found.refused))
