"""The tables and the plots of `layout`."""

from collections.abc import Iterator, Sequence

from peakward.records.study import Column, Plot, Series, Table
from peakward.report.columns import spread_column
from peakward.report.format import format_spread
from peakward.studies.drawing import point
from peakward.studies.layout.grid import BASES, TITLES
from peakward.studies.pieces import Timed, groups, named, sizes
from peakward.studies.readings import ratio, status, verdict


def timings(timed: Sequence[Timed]) -> Iterator[Table]:
    """Of each subject the time and the bytes by layout."""
    for subject, title in TITLES.items():
        own = [each for each in timed if each.case.subject == subject]
        yield Table(
            title=title,
            columns=(
                Column(name="sizes", unit="name"),
                Column(name="precision"),
                Column(name="layout", unit="name"),
                Column(name="status"),
                spread_column("time"),
                Column(name="over the first", unit="ratio"),
                Column(name="bytes moved", unit="bytes"),
                Column(name="over the least", unit="ratio"),
                Column(name="rate", unit="flops_per_s"),
                Column(name="difference from fp64", unit="count"),
                Column(name="verdict"),
            ),
            rows=tuple(_row(each, group) for group in groups(own) for each in group),
        )


def base_of(each: Timed, group: Sequence[Timed]) -> Timed | None:
    """What a piece is held against: of the bases that its subject has the one of the same work."""
    bases = BASES[each.case.subject]
    work = each.case.piece.partition(" of ")[0]
    return named(group, next((base for base in bases if base.startswith(f"{work} of ")), bases[0]))


def _row(each: Timed, group: Sequence[Timed]) -> tuple[str | float | None, ...]:
    base, work = base_of(each, group), each.work
    return (
        sizes(each.case),
        each.case.precision,
        each.case.piece,
        status(each.measurement),
        None if each.time is None else format_spread(each.time, "s"),
        None if base is None else ratio(each.median_s, base.median_s),
        None if work is None else work.moved_bytes,
        None if work is None else ratio(work.moved_bytes, work.least_bytes),
        each.flops_per_s,
        None if work is None else work.difference,
        verdict(each.measurement),
    )


def views(timed: Sequence[Timed]) -> Table:
    """What each operation made of its input's memory."""
    return Table(
        title="Which views copy",
        columns=(
            Column(name="operation", unit="name"),
            Column(name="of a matrix that is"),
            Column(name="result"),
            Column(name="allocated", unit="bytes"),
            Column(name="bytes moved", unit="bytes"),
        ),
        rows=tuple(
            (
                each.case.piece.split(" of ")[0],
                each.case.piece.split(" of ")[1],
                "not run" if each.work is None else WORDS[each.work.result],
                None if each.work is None else each.work.allocated_bytes,
                None if each.work is None else each.work.moved_bytes,
            )
            for each in timed
            if each.case.subject == "view"
        ),
    )


WORDS = {"new": "copy", "view": "view", "refused": "refused by torch"}


def plots(timed: Sequence[Timed]) -> tuple[Plot, ...]:
    """Of each subject the times by layout, a series for each size and precision."""
    return tuple(
        Plot(
            title=title,
            kind="bars",
            x_label="layout",
            y_label="time",
            x_unit="count",
            y_unit="s",
            series=tuple(
                Series(
                    name=f"{sizes(group[0].case)}, {group[0].case.precision}",
                    points=tuple(
                        point(i, each.time, each.case.piece)
                        for i, each in enumerate(group)
                        if each.time is not None
                    ),
                )
                for group in groups(each for each in timed if each.case.subject == subject)
            ),
        )
        for subject, title in TITLES.items()
    )
