"""How far precisions are from fp64: rows of a study whose points have the shape of their model."""

from collections.abc import Iterator
from typing import Any

from peakward.records.numerics import Drift
from peakward.records.study import Conclusion
from peakward.studies import values
from peakward.studies.claims import Sentence, known
from peakward.studies.engine import Row, View
from peakward.studies.readings import ratio
from peakward.studies.values import Value, label, of_row, table, text

FP32 = "fp32"
Pair = tuple[Row[Any], Drift]


def drifts(view: View[Any]) -> list[Pair]:
    """Each model and precision with each quantity."""
    return [(row, each) for row in view.rows for each in drifted(row)]


def drifted(row: Row[Any]) -> tuple[Drift, ...]:
    """The distances from fp64; none unless the case ended `ok`."""
    found = None if row.measurement is None else row.measurement.numerics
    return () if found is None else found.drifts


def distances(view: View[Any]) -> Iterator[Conclusion]:
    """Says for each size and quantity how far each precision is from fp64, and which is furthest."""
    for group in values.groups(drifts(view), lambda pair: (pair[0].point.shape, pair[1].quantity)):
        told, (first, what) = Sentence(), group[0]
        said = ", ".join(
            f"{row.name} {told(f'error, {row.name}', each.error, 'count', row.measurement)}"
            for row, each in group
        )
        ranked = known([pair for pair in group if pair[0].name != FP32], over_fp32)
        beyond = ""
        if ranked:
            most, (row, each) = max(ranked, key=lambda found: found[0])
            beyond = (
                f"; furthest is {row.name}, "
                f"{told('over fp32', most, 'ratio', row.measurement)} the error of {FP32} and "
                f"{told('of its bound', ratio(each.error, each.bound), 'share', row.measurement)} of its "
                "bound"
            )
        yield from told.end(
            f"Distance from fp64 of the {what.quantity} of {first.point.shape.name}: {said}{beyond}."
        )


def over_fp32(pair: Pair) -> float | None:
    """The error over that of fp32."""
    return ratio(pair[1].error, pair[1].fp32_error)


table_of_drifts = table(
    "Distance from fp64",
    (
        *of_row(text("model", lambda row: row.point.shape.name)),
        *of_row(label("precision", lambda row: row.name)),
        text("quantity", lambda pair: pair[1].quantity),
        Value("error", "count", lambda pair: pair[1].error),
        Value("fp32's", "count", lambda pair: pair[1].fp32_error),
        Value("over fp32's", "ratio", over_fp32),
        Value("bound", "count", lambda pair: pair[1].bound),
    ),
    drifts,
    note="‖x − fp64‖ / ‖fp64‖ of the first step, at full width on at most 4 layers and 2 × 256 "
    "tokens, from the same weights and tokens. The bound is that of the precision's numerics class.",
)
