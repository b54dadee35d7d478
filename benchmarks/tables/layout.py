"""Tables and figures as the pages show them."""

from collections.abc import Iterable, Sequence

from peakward.records.measurement import Interval


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int) -> str:
    """A Markdown table whose first columns, so many, hold words and the others figures."""
    rule = ["-"] * words + ["-:"] * (len(head) - words)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def duration(seconds: float | None) -> str:
    """Three figures, in µs or ms."""
    if seconds is None:
        return "–"
    value, unit = (seconds * 1e3, "ms") if seconds >= 1e-3 else (seconds * 1e6, "µs")
    return f"{value:.{max(0, 2 - len(str(int(value))) + 1)}f} {unit}"


def times(ratio: Interval | None) -> str:
    """A speed-up with its interval."""
    if ratio is None:
        return "–"
    return f"{ratio.estimate:.3f}× ({ratio.low:.3f}–{ratio.high:.3f})"
