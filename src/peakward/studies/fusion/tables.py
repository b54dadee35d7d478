"""The tables and the plots of `fusion`."""

from collections.abc import Iterator, Sequence

from peakward.records.calibration import Calibration
from peakward.records.study import Column, Plot, Point, Series, Table
from peakward.report.columns import spread_column
from peakward.report.format import format_spread
from peakward.studies.fusion.grid import PIECES, Absence
from peakward.studies.pieces import Timed, copy_share, groups, passes_at_copy, sizes
from peakward.studies.readings import status, verdict

LAUNCH_S = 20e-6
"""A call from Python to its kernel took 5 to 20 µs on the hosts of our GPUs."""


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
                Column(name="operands' passes", unit="count"),
                Column(name="operands' bytes", unit="bytes"),
                Column(name="counted by"),
                Column(name="passes at the copy's bandwidth", unit="count"),
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
                    each.name,
                    status(each.measurement),
                    each.passes,
                    None if each.work is None else each.work.moved_bytes,
                    None if each.work is None else each.work.counted_by,
                    passes_at_copy(each, of),
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
                    Point(x=i, y=each.bytes_per_s, label=each.name)
                    for i, each in enumerate(group)
                    if each.bytes_per_s is not None
                ),
            )
            for group in groups(own)
        ),
    )


def launches(timed: Sequence[Timed], of: Calibration | None) -> tuple[str, ...]:
    """Which sizes are so small that a GPU's times of them are the host's launches too."""
    small = [
        each
        for each in timed
        if of is not None
        and each.case.device == "cuda"
        and each.work is not None
        and each.work.least_bytes / of.copy_bytes_per_s < LAUNCH_S
    ]
    if not small:
        return ()
    names = ", ".join(dict.fromkeys(f"{each.case.subject} {sizes(each.case)}" for each in small))
    return (
        f"The least bytes of {names} take under 20 µs: a host launches a kernel in 5 to 20 µs there, and "
        "the more calls a piece has, the more of its time is the host's, which differs from host to host.",
    )
