"""Values of rows, and the tables and plots made of them: one value is a column, an axis or a number."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from peakward.prediction.parameters import n_parameters
from peakward.records.measurement import Interval
from peakward.records.study import Cell, Column, Plot, Point, Series, Table, Unit
from peakward.report.cases import workload
from peakward.report.columns import spread_column
from peakward.report.format import format_spread
from peakward.studies import readings as read
from peakward.studies.engine import View

R = TypeVar("R")
Rows = Callable[[View[Any]], Iterable[Any]]
Key = Callable[[Any], Hashable]


class Value(msgspec.Struct, frozen=True):
    """A value that a row has: its name, its unit, and how it is read off the row."""

    name: str
    unit: Unit
    get: Callable[[Any], Cell | Interval]
    """An interval is shown as its estimate, where it has a `level` with its ends."""
    level: float | None = None
    """How sure they are: 0.95 of intervals at 95%."""

    @property
    def column(self) -> Column:
        """Its heading in a table."""
        if self.level is None:
            return Column(name=self.name, unit=self.unit)
        return spread_column(self.name, self.level)

    def number(self, row: Any) -> float | None:
        """The number, of an interval its estimate; None of text."""
        found = self.get(row)
        if isinstance(found, Interval):
            return found.estimate
        return None if isinstance(found, str) else found

    def cell(self, row: Any) -> Cell:
        """Returns what stands in a table for the row."""
        found = self.get(row)
        if not isinstance(found, Interval):
            return found
        return found.estimate if self.level is None else format_spread(found, self.unit)


def text(name: str, get: Callable[[Any], Cell]) -> Value:
    """A value that is text."""
    return Value(name, "text", get)


def given(name: str, unit: Unit, number: float | None) -> Value:
    """A number that is known already, whatever the row."""
    return Value(name, unit, lambda _row: number)


def label(name: str, get: Callable[[Any], Cell]) -> Value:
    """Text that says what a row is about."""
    return Value(name, "name", get)


def spread(
    name: str,
    get: Callable[[Any], Cell | Interval] = lambda row: row.time,
    unit: Unit = "s",
    level: float = 0.95,
) -> Value:
    """A value with its interval, in one column."""
    return Value(name, unit, get, level)


def ends(
    names: Sequence[str], unit: Unit, get: Callable[[Any], Interval | None]
) -> tuple[Value, ...]:
    """Three values: the estimate of an interval, its low end and its high end."""

    def end(field: str) -> Callable[[Any], Cell]:
        return lambda row: None if (found := get(row)) is None else getattr(found, field)

    fields = ("estimate", "low", "high")
    return tuple(Value(name, unit, end(field)) for name, field in zip(names, fields, strict=True))


def of_row(*values: Value) -> tuple[Value, ...]:
    """The same values for a table with several lines a row, each line a pair of the row and a part of it."""
    return tuple(
        msgspec.structs.replace(value, get=lambda pair, get=value.get: get(pair[0]))
        for value in values
    )


SIZE = (
    text("model", lambda row: row.point.case.name),
    text("workload", lambda row: workload(row.point.case.workload)),
)
PRECISION = text("precision", lambda row: row.point.case.configuration.precision)
STATUS = text("status", lambda row: row.status)
MEDIAN = Value("median", "s", lambda row: row.median_s)
TIME = spread("time")
INTERVAL = ends(("median", "from", "to"), "s", lambda row: row.time)
TOKENS_PER_S = Value("throughput", "tokens_per_s", lambda row: read.tokens_per_s(row.measurement))
FLOPS_PER_S = Value("model FLOP/s", "flops_per_s", lambda row: read.flops_per_s(row.measurement))
PEAK = Value("peak memory", "bytes", lambda row: row.peak_bytes)
VERDICT = text("verdict", lambda row: read.verdict(row.measurement))
REASON = text("reason", lambda row: row.reason)
SEQ_LEN = Value("sequence length", "count", lambda row: row.point.case.workload.seq_len)
PARAMETERS = Value("parameters", "count", lambda row: n_parameters(row.point.case.model))


def _of_compile(name: str, field: str) -> Value:
    def counted(row: Any) -> Cell:
        return getattr(read.compile_report(row.measurement), field, None)

    return Value(name, "count", counted)


COMPILED = (
    _of_compile("graphs", "n_graphs"),
    _of_compile("graph breaks", "n_graph_breaks"),
    _of_compile("recompilations", "n_recompiles"),
    _of_compile("from disk cache", "n_cached_graphs"),
)
"""The numbers that tell what torch.compile did."""
REASONS = text(
    "reasons",
    lambda row: "; ".join(getattr(read.compile_report(row.measurement), "reasons", ())) or None,
)
"""Why it broke off or began again."""


def all_rows(view: View[Any]) -> Iterable[Any]:
    """The grid."""
    return view.rows


def groups(rows: Iterable[R], key: Callable[[R], Hashable]) -> tuple[tuple[R, ...], ...]:
    """The rows of one key together, in the order in which the keys first came."""
    found: dict[Hashable, list[R]] = {}
    for each in rows:
        found.setdefault(key(each), []).append(each)
    return tuple(map(tuple, found.values()))


def largest(
    rows: Iterable[R], key: Callable[[R], Hashable], size: Callable[[R], float]
) -> tuple[R, ...]:
    """The row of the largest size of each key, in the order in which the keys first came."""
    return tuple(max(group, key=size) for group in groups(rows, key))


def table(
    title: str | Callable[[Any], str],
    values: Sequence[Value],
    rows: Rows = all_rows,
    *,
    each: Key | None = None,
    note: str | Callable[[Any], str] | None = None,
    about: Sequence[tuple[Value, str]] = (),
) -> Callable[[View[Any]], Iterator[Table]]:
    """A table of these values over rows; with `each`, one a group, titled and noted by its first row. `about`
    are further sentences of the note, each about a value that some row has."""

    def made(view: View[Any]) -> Iterator[Table]:
        found = tuple(rows(view))
        for group in (found,) if each is None else groups(found, each):
            first = note if not callable(note) else note(group[0]) if group else None
            told = (
                text for value, text in about if any(value.cell(row) is not None for row in group)
            )
            yield Table(
                title=title if isinstance(title, str) else title(group[0]),
                columns=tuple(value.column for value in values),
                rows=tuple(tuple(value.cell(row) for value in values) for row in group),
                note=" ".join(filter(None, (first, *told))) or None,
            )

    return made


def mark(x: float, y: float | Interval, name: str | None = None) -> Point:
    """A point of a plot, with its interval where it has one."""
    if isinstance(y, Interval):
        return Point(x=x, y=y.estimate, low=y.low, high=y.high, label=name)
    return Point(x=x, y=y, label=name)


def series(named: Iterable[tuple[str, Point]]) -> tuple[Series, ...]:
    """One series a name, in the order in which the names first came."""
    found = groups(named, lambda each: each[0])
    return tuple(Series(name=of[0][0], points=tuple(each for _, each in of)) for of in found)


def plot(
    title: str | Callable[[Any], str],
    x: Value,
    y: Value,
    by: Callable[[Any], str],
    rows: Rows = all_rows,
    *,
    each: Key | None = None,
    names: Callable[[Any], str] | None = None,
    log: Literal["", "x", "xy", "y"] = "",
) -> Callable[[View[Any]], Iterator[Plot]]:
    """A line for each name that `by` gives; with `each`, a plot a group. `names` label the points."""

    def made(view: View[Any]) -> Iterator[Plot]:
        found = tuple(rows(view))
        for group in (found,) if each is None else groups(found, each):
            told = [(row, x.get(row), y.get(row)) for row in group]
            yield Plot(
                title=title if isinstance(title, str) else title(group[0]),
                kind="lines",
                x_label=x.name,
                y_label=y.name,
                x_unit=x.unit,
                y_unit=y.unit,
                log_x="x" in log,
                log_y="y" in log,
                series=series(
                    (by(row), mark(at, value, names and names(row)))
                    for row, at, value in told
                    if isinstance(at, int | float) and isinstance(value, int | float | Interval)
                ),
            )

    return made


def bars(
    title: str,
    x_label: str,
    y: Value,
    by: Callable[[Any], str],
    rows: Rows = all_rows,
) -> Callable[[View[Any]], Iterator[Plot]]:
    """A bar for each row by its name, those of one series beside one another."""

    def made(view: View[Any]) -> Iterator[Plot]:
        yield Plot(
            title=title,
            kind="bars",
            x_label=x_label,
            y_label=y.name,
            x_unit="count",
            y_unit=y.unit,
            series=tuple(
                Series(
                    name=by(group[0]),
                    points=tuple(
                        mark(place, value, row.name)
                        for place, row in enumerate(group)
                        if isinstance(value := y.get(row), int | float | Interval)
                    ),
                )
                for group in groups(rows(view), by)
            ),
        )

    return made
