"""Tables as the pages show them; figures as reports do."""

from collections.abc import Iterable, Sequence

from peakward.records.measurement import Interval
from peakward.report.format import NOTHING, format_cell, format_spread


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int) -> str:
    """A Markdown table whose first columns, so many, hold words and the others figures."""
    rule = ["-"] * words + ["-:"] * (len(head) - words)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def duration(seconds: float | None) -> str:
    """Three figures and the unit."""
    return format_cell(seconds, "s")


def times(ratio: Interval | None) -> str:
    """A speed-up with its interval."""
    return NOTHING if ratio is None else format_spread(ratio, "ratio")


def faster(time_ratio: Interval | None) -> str:
    """The same of a time ratio, below 1 of which the candidate is the faster."""
    if time_ratio is None:
        return NOTHING
    low, high = 1 / time_ratio.high, 1 / time_ratio.low
    return times(Interval(estimate=1 / time_ratio.estimate, low=low, high=high))
