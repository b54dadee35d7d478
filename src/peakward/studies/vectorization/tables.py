"""The tables and the plot of `vectorization`."""

from collections.abc import Sequence

from peakward.records.calibration import Calibration, MatmulRate
from peakward.records.study import Column, Plot, Point, Table
from peakward.report.columns import spread_column
from peakward.report.format import format_spread
from peakward.studies.drawing import series
from peakward.studies.pieces import Timed
from peakward.studies.readings import ratio, status, verdict

HELD_TO = {"fp64": "fp32"}
"""The precision whose square product stands for one that is not calibrated."""


def by_device(timed: Sequence[Timed], of: Calibration | None) -> tuple[Table, ...]:
    """One table for each kind of device: no table mixes them."""
    devices = dict.fromkeys(each.case.device for each in timed)
    return tuple(
        Table(
            title=f"Products on the {'CPU' if device == 'cpu' else 'GPU'}",
            columns=(
                Column(name="n", unit="count"),
                Column(name="by"),
                Column(name="precision"),
                Column(name="status"),
                spread_column("time"),
                Column(name="rate", unit="flops_per_s"),
                Column(name="of the square product", unit="share"),
                Column(name="difference from fp64", unit="count"),
                Column(name="verdict"),
            ),
            rows=tuple(_row(each, of) for each in timed if each.case.device == device),
        )
        for device in devices
    )


def _row(each: Timed, of: Calibration | None) -> tuple[str | float | None, ...]:
    return (
        each.case.sizes[0],
        each.case.piece,
        each.case.precision,
        status(each.measurement),
        None if each.time is None else format_spread(each.time, "s"),
        each.flops_per_s,
        square_share(each, of),
        None if each.work is None else each.work.difference,
        verdict(each.measurement),
    )


def square_share(each: Timed, of: Calibration | None) -> float | None:
    """Of `square_product`'s rate; None where there is none."""
    square = square_product(each, of)
    return None if square is None else ratio(each.flops_per_s, square.flops_per_s)


def square_product(each: Timed, of: Calibration | None) -> MatmulRate | None:
    """The fastest square product that the calibration measured in the type; None on another device than
    the calibration's, and of a type that it did not measure."""
    if of is None or of.environment.device_type != each.case.device:
        return None
    kind = HELD_TO.get(each.case.precision, each.case.precision)
    own = [rate for rate in of.matmul if rate.compute_type == kind]
    return max(own, key=lambda rate: rate.flops_per_s, default=None)


def over_square(timed: Sequence[Timed], of: Calibration | None) -> tuple[str, ...]:
    """A note that names what ran faster than the calibration's square product."""
    above = [each for each in timed if (square_share(each, of) or 0.0) > 1]
    if not above:
        return ()
    names = ", ".join(
        f"{each.case.piece} {each.case.sizes[0]} in {each.case.precision}" for each in above
    )
    return (
        f"A share over 100% ({names}): the product ran faster than the square one of the "
        "calibration, whose rate is the best of a few sizes at another moment.",
    )


def plot(timed: Sequence[Timed]) -> Plot:
    """Rate by size, a line for each way."""
    return Plot(
        title="Rate of a matrix product",
        kind="lines",
        x_label="n",
        y_label="FLOPs a second",
        x_unit="count",
        y_unit="flops_per_s",
        log_x=True,
        log_y=True,
        series=series(
            (
                f"{each.case.piece}, {each.case.precision}",
                Point(x=each.case.sizes[0], y=each.flops_per_s),
            )
            for each in timed
            if each.flops_per_s is not None
        ),
    )
