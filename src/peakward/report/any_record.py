"""Shows a record without a report of its own, as a table row and as a document."""

import re

import msgspec

from peakward.records.case import Case
from peakward.records.measurement import Interval
from peakward.records.result import Result
from peakward.records.study import Cell, Column, Table
from peakward.report.cases import label
from peakward.report.columns import without_empty
from peakward.report.document import Document, Fact, Facts, Section, TableBlock
from peakward.report.format import format_cell


def row(record: msgspec.Struct) -> dict[str, Cell]:
    """The record's plain values by name.

    A nested record's values have its name in front. An interval's ends have `_low` and `_high` behind. A case
    is its label, and several texts are joined. Lists of records are left out.
    """
    found: dict[str, Cell] = {}
    for name in record.__struct_fields__:
        _add(found, name, getattr(record, name))
    return found


def rows(record: msgspec.Struct) -> list[dict[str, Cell]]:
    """One row for each entry of the record's `ROWS`, or the record's own row without any."""
    fields = record.ROWS if isinstance(record, Result) else ()
    if not fields:
        return [row(record)]
    lists = (getattr(record, name) for name in fields)
    return [found for each in next(filter(None, lists), ()) for found in _rows_of(each)]


def _rows_of(each: msgspec.Struct) -> list[dict[str, Cell]]:
    """The record's row. A record with rows of its own gives those, each with the whole record's name."""
    if not isinstance(each, Result) or not each.ROWS:
        return [row(each)]
    first = each.__struct_fields__[0]
    named = {f"{type(each).__name__.lower()}_{first}": getattr(each, first)}
    return [named | found for found in rows(each)]


def document(record: msgspec.Struct) -> Document:
    """The record's plain values, and a table for each list of records in it."""
    name = " ".join(re.findall("[A-Z][a-z]*", type(record).__name__)).capitalize()
    own = {key: value for key, value in row(record).items() if value is not None}
    facts = tuple(Fact(name=_spaced(key), value=_printed(value)) for key, value in own.items())
    lists = {
        field: value
        for field in record.__struct_fields__
        if _holds_records(value := getattr(record, field))
    }
    first = next(iter(own.values()), name)
    return Document(
        title=name,
        headline=_printed(first),
        blocks=(Facts(facts=facts),),
        sections=tuple(
            Section(title=_spaced(field).capitalize(), blocks=(TableBlock(table=_table(value)),))
            for field, value in lists.items()
        ),
    )


def _table(records: tuple[msgspec.Struct, ...]) -> Table:
    found = [row(each) for each in records]
    names = list(dict.fromkeys(name for each in found for name in each))
    columns = tuple(Column(name=_spaced(name), unit="name") for name in names)
    cells = tuple(
        tuple(None if (cell := each.get(name)) is None else _printed(cell) for name in names)
        for each in found
    )
    return without_empty(Table(title="", columns=columns, rows=cells))


def _add(found: dict[str, Cell], name: str, value: object) -> None:
    if isinstance(value, Case):
        found[name] = label(value)
    elif isinstance(value, Interval):
        found |= {name: value.estimate, f"{name}_low": value.low, f"{name}_high": value.high}
    elif isinstance(value, msgspec.Struct):
        found |= {f"{name}_{inner}": cell for inner, cell in row(value).items()}
    elif isinstance(value, dict):
        for key, inner in value.items():
            _add(found, f"{name}_{key}", inner)
    elif isinstance(value, tuple):
        if not _holds_records(value):
            found[name] = ", ".join(map(str, value)) or None
    elif value is None or isinstance(value, str | int | float):
        found[name] = value
    else:
        found[name] = str(value)


def _holds_records(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], msgspec.Struct)


def _spaced(name: str) -> str:
    return name.strip("_").replace("_", " ")


def _printed(value: Cell) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_cell(value, "count")
