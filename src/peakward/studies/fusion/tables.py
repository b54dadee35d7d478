"""The tables and the plots of `fusion`."""

from collections.abc import Iterator, Sequence

from peakward.records.calibration import Calibration
from peakward.records.study import Column, Plot, Point, Series, Table
from peakward.report.columns import spread_column
from peakward.report.format import format_spread
from peakward.studies.fusion.grid import PIECES, Absence
from peakward.studies.pieces import Timed, copy_share, groups, sizes
from peakward.studies.readings import status, verdict


def by_subject(timed: Sequence[Timed], of: Calibration | None) -> Iterator[Table]:
    """Each subject's pieces: what they move, how long that takes, and how near they are to fp64."""
    for subject in PIECES:
        yield Table(
            title=subject,
            columns=(
                Column(name="rows × columns", unit="name"),
                Column(name="precision"),
                Column(name="piece", unit="name"),
                Column(name="status"),
                Column(name="passes", unit="count"),
                Column(name="bytes moved", unit="bytes"),
                Column(name="counted by"),
                spread_column("time"),
                Column(name="bandwidth", unit="bytes_per_s"),
                Column(name="share of the copy's", unit="share"),
                Column(name="difference from fp64", unit="count"),
                Column(name="verdict"),
            ),
            rows=tuple(
                (
                    sizes(each.case),
                    each.case.precision,
                    each.case.piece,
                    status(each.measurement),
                    each.passes,
                    None if each.work is None else each.work.moved_bytes,
                    None if each.work is None else each.work.counted_by,
                    None if each.time is None else format_spread(each.time, "s"),
                    each.bytes_per_s,
                    copy_share(each, of),
                    None if each.work is None else each.work.difference,
                    verdict(each.measurement),
                )
                for each in timed
                if each.case.subject == subject
            ),
        )


def not_run(absences: Sequence[Absence]) -> Table:
    """What cannot run here, with the reason."""
    return Table(
        title="Left out",
        columns=(Column(name="piece", unit="name"), Column(name="of"), Column(name="reason")),
        rows=tuple((each.piece, ", ".join(each.subjects), each.reason) for each in absences),
    )


def plots(timed: Sequence[Timed]) -> tuple[Plot, ...]:
    """Of each subject the bandwidth of its pieces, a series for each size and precision."""
    return tuple(_plot(subject, timed) for subject in PIECES)


def _plot(subject: str, timed: Sequence[Timed]) -> Plot:
    own = [each for each in timed if each.case.subject == subject]
    return Plot(
        title=f"Bandwidth of {subject}",
        kind="bars",
        x_label="piece",
        y_label="least bytes a second",
        x_unit="count",
        y_unit="bytes_per_s",
        series=tuple(
            Series(
                name=f"{sizes(group[0].case)}, {group[0].case.precision}",
                points=tuple(
                    Point(x=i, y=each.bytes_per_s, label=each.case.piece)
                    for i, each in enumerate(group)
                    if each.bytes_per_s is not None
                ),
            )
            for group in groups(own)
        ),
    )
