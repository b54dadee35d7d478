"""The loss of a model on real text in several ways: what the studies of caches and of positions share."""

import math
from collections.abc import Callable, Iterable, Iterator
from statistics import fmean
from typing import Any

from peakward.records.measurement import Interval
from peakward.records.study import Conclusion
from peakward.stats.summary import paired_difference
from peakward.studies.claims import Sentence
from peakward.studies.engine import Row
from peakward.studies.readings import ratio


def losses(row: Row[Any], at: int = 0) -> tuple[float, ...] | None:
    """The losses of the stretches at one place of the text, in nats a token; None unless it ended `ok`."""
    found = None if row.measurement is None else row.measurement.quality
    return None if found is None or at >= len(found.losses) else found.losses[at].losses


def n_places(row: Row[Any]) -> int:
    """The number of places whose loss is told apart; 0 unless it ended `ok`."""
    found = None if row.measurement is None else row.measurement.quality
    return 0 if found is None else len(found.losses)


def where(row: Row[Any], at: int) -> str | None:
    """The name of that place."""
    found = None if row.measurement is None else row.measurement.quality
    return None if found is None or at >= len(found.losses) else found.losses[at].where


def mean(row: Row[Any], at: int = 0) -> float | None:
    """The loss over all stretches, in nats a token."""
    found = losses(row, at)
    return None if not found else fmean(found)


def perplexity(row: Row[Any], at: int = 0) -> float | None:
    """Returns e to the loss; None where that is beyond a float."""
    found = mean(row, at)
    return None if found is None or found > 700 else math.exp(found)


def kept_bytes(row: Row[Any]) -> int | None:
    """Keys and values of one sequence at its full length."""
    found = None if row.measurement is None else row.measurement.quality
    return None if found is None else found.kept_bytes


def more(row: Row[Any], than: Row[Any], at: int = 0) -> Interval | None:
    """How much more loss the row has on the same text: a t-interval at 95% over the stretches, paired.

    Stretches of one row of text are taken as independent. None with fewer than two, and where one failed.
    """
    mine, others = losses(row, at), losses(than, at)
    return None if mine is None or others is None else paired_difference(mine, others)


def weight_bytes(row: Row[Any]) -> int | None:
    """All weights as they are stored."""
    found = None if row.measurement is None else row.measurement.quality
    return None if found is None else found.weight_bytes


def by_how_much(told: Sentence, row: Row[Any], than: Row[Any]) -> str:
    """For a sentence: "0.0102 (0.00595 to 0.0145) nats a token more", or less, whichever it is; behind an
    interval that holds 0, "not told apart"."""
    found, side = more(row, than), "more"
    if found is not None and found.estimate < 0:
        found, side = more(than, row), "less"
    both = (row.measurement, than.measurement)
    by, ends = (say(f"{side} loss", found, "count", *both) for say in (told.estimate, told.range))
    return f"{by} ({ends}{_doubt(found)}) nats a token {side}"


def _doubt(found: Interval | None) -> str:
    """For behind the ends of a difference."""
    return ": not told apart" if told_apart(found) == "not told apart" else ""


def told_apart(found: Interval | None) -> str | None:
    """A cell: whether a difference is more, less or not told apart from none."""
    if found is None:
        return None
    if found.low > 0:
        return "more"
    return "less" if found.high < 0 else "not told apart"


def against(
    base: Row[Any],
    rows: Iterable[Row[Any]],
    *,
    kept: Callable[[Row[Any]], int | None] = kept_bytes,
) -> Iterator[Conclusion]:
    """Says what each of the other rows has more of loss than the base, and what of its bytes it keeps."""
    for row in rows:
        if row.name == base.name or (found := more(row, base)) is None:
            continue
        told, both, side = Sentence(), (row.measurement, base.measurement), "more"
        if found.estimate < 0:
            side, found = (
                "less",
                Interval(estimate=-found.estimate, low=-found.high, high=-found.low),
            )
        said = f"{row.name}: a loss of {told('loss', mean(row), 'count', row.measurement)} nats a token"
        said += f", {told(f'{side} loss', found.estimate, 'count', *both)} {side} than {base.name} "
        said += f"({told.range(f'{side} loss', found, 'count', *both)}{_doubt(found)})"
        if share := ratio(kept(row), kept(base)):
            said += f", in {told('bytes kept', share, 'share', *both)} of the bytes"
        yield from told.end(f"{said}.")
