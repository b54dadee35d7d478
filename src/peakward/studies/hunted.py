"""Sentences on training runs under watch: how they turn, the first bad operator, and what mends them."""

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from peakward.records.case import NumericsCase
from peakward.records.debugging import Cause, Fault, Hunt, Trial
from peakward.records.study import Conclusion
from peakward.studies.claims import Sentence, sources
from peakward.studies.engine import Row, View

AS_WRITTEN, TENTH, MENDED = "as written", "a tenth of the rate", "with an epsilon"
WAYS = {
    AS_WRITTEN: "As written",
    TENTH: "At a tenth of the rate",
    MENDED: "With an epsilon in each scale",
}
"""The ways of `lab/debugging/story.py`, and how a sentence begins with them."""
LAST = 20
"""The loss at the end is the mean of so many steps."""
BEFORE = 20


def runs(view: View[Any], *ways: str) -> list[Row[Any]]:
    """The runs of these ways that were watched to their end; without a way all."""
    return [
        row
        for row in view.rows
        if isinstance(row.case, NumericsCase) and hunt(row) and (not ways or row.name in ways)
    ]


def hunt(row: Row[Any]) -> Hunt | None:
    """None unless the case ended `ok`, or is a step."""
    found = None if row.measurement is None else row.measurement.numerics
    return None if found is None else found.hunt


def fault(row: Row[Any]) -> Fault | None:
    """The first bad operator, where one was found."""
    found = hunt(row)
    return None if found is None else found.fault


def cause(row: Row[Any]) -> Cause | None:
    """Its likely cause."""
    found = hunt(row)
    return None if found is None else found.cause


def faults(view: View[Any]) -> list[tuple[Row[Any], Fault]]:
    """Each run with the operator that was found in it."""
    return [(row, found) for row in runs(view) if (found := fault(row)) is not None]


def trials(view: View[Any]) -> list[tuple[Row[Any], Trial]]:
    """Each run with each change that was tried on it."""
    return [(row, each) for row in runs(view) if (it := hunt(row)) for each in it.trials]


def losses(row: Row[Any]) -> list[float]:
    """The finite losses in the order of the steps."""
    found = None if row.measurement is None else row.measurement.numerics
    return [] if found is None else [each for each in found.losses if each is not None]


def last_loss(row: Row[Any]) -> float | None:
    """The mean of the last finite losses."""
    return fmean(found[-LAST:]) if (found := losses(row)) else None


def zeros(row: Row[Any]) -> tuple[float, ...]:
    """The share of zeros in the channel that went bad, up to the fault."""
    found = None if row.measurement is None else row.measurement.numerics
    return () if found is None else found.zero_share


def is_bad(row: Row[Any]) -> bool:
    """Whether the run turned non-finite, whatever was found of it."""
    found = hunt(row)
    return found is not None and found.outcome != "finite"


def seed(row: Row[Any]) -> str:
    """For a sentence: "seed 0"."""
    return f"seed {row.case.seed}"


def reproduction(view: View[Any]) -> Iterator[Conclusion]:
    """Says of each run as written how well it trained before it turned, and of how many seeds it does."""
    for row in runs(view, AS_WRITTEN):
        if (found := fault(row)) is None:
            continue
        told, known = Sentence(), losses(row)
        rate = hunt_rate(row)
        at = told("failing step", found.step, "count", row.measurement)
        yield from told.end(
            f"{WAYS[AS_WRITTEN]} ({seed(row)}) the loss falls from "
            f"{told('first loss', known[0], 'count', row.measurement)} to "
            f"{told('loss before', last_loss(row), 'count', row.measurement)}, and step {at} is not finite, "
            f"at a rate of {told('learning rate', rate, 'count', row.measurement)}."
        )
    for way, begins in WAYS.items():
        rows = runs(view, way)
        if not rows:
            continue
        told, bad = Sentence(), [row for row in rows if is_bad(row)]
        n, of = (
            told.count(name, count, sources(rows))
            for name, count in (("runs that turn", len(bad)), ("runs", len(rows)))
        )
        ends = [loss for row in rows if not is_bad(row) and (loss := last_loss(row)) is not None]
        last = (
            f"; the others end at a loss of {told('last loss', fmean(ends), 'count', *sources(rows))}"
            if ends
            else ""
        )
        within = told("steps", rows[0].case.sizes[-1], "count", *sources(rows))
        yield from told.end(
            f"{begins} {n} of {of} runs turn non-finite within {within} steps{last}."
        )


def hunt_rate(row: Row[Any]) -> float | None:
    """The learning rate of the last step that was replayed before the fault."""
    found = hunt(row)
    known = [] if found is None else [each.learning_rate for each in found.steps]
    return next((each for each in reversed(known) if each is not None), None)


def operators(view: View[Any]) -> Iterator[Conclusion]:
    """Names the first bad operator of each fault, its channel, and how that channel died."""
    for row in runs(view):
        found, whole = fault(row), hunt(row)
        if found is None or whole is None:
            continue
        told, channel = Sentence(), found.channel
        where = ""
        if channel is not None:
            there = told("bad values there", channel.n_nonfinite, "count", row.measurement)
            apart = told("elsewhere", channel.n_nonfinite_elsewhere, "count", row.measurement)
            where = (
                f": {there} bad values in channel {channel.index} of axis {channel.axis}, {apart} "
                "elsewhere"
            )
        again = "bit for bit" if whole.replayed_bitwise else "not bit for bit"
        yield from told.end(
            f"{WAYS[row.name]} ({seed(row)}) the first bad operator is {found.operator} in "
            f"{found.module} ({found.phase}), replayed {again}{where}."
        )
        yield from died(row)


def died(row: Row[Any]) -> Iterator[Conclusion]:
    """Says how the share of zeros in the channel went up to the fault."""
    shares = zeros(row)
    if len(shares) <= BEFORE:
        return
    told = Sentence()
    first, before, last = (
        told(name, share, "share", row.measurement)
        for name, share in (
            ("zeros at first", shares[0]),
            ("zeros before", shares[-1 - BEFORE]),
            ("zeros at the fault", shares[-1]),
        )
    )
    steps_before = told("steps before", BEFORE, "count")
    end = "the channel is dead" if shares[-1] == 1.0 else "the channel still has other values"
    yield from told.end(
        f"That channel ({seed(row)}) is zero for {first} of the tokens at first, for {before} {steps_before} "
        f"steps before the fault, for {last} at it: {end}."
    )


def mending(view: View[Any]) -> Iterator[Conclusion]:
    """Says what each fault's likely cause is, and which change passed from the snapshot on."""
    for row in runs(view):
        found = hunt(row)
        if found is None or found.cause is None:
            continue
        told, helped = Sentence(), [each for each in found.trials if each.passes]
        n = told("changes tried", len(found.trials), "count", row.measurement)
        if helped:
            passed = (
                f"{helped[0].fix} ({helped[0].target}) stays finite over "
                f"{told('steps', helped[0].n_steps, 'count', row.measurement)} steps from the snapshot on"
            )
        else:
            passed = "none passes"
        yield from told.end(
            f"Likely cause ({row.name}, {seed(row)}): {found.cause.kind}. Of {n} changes that were "
            f"tried {passed}."
        )


def recovery(view: View[Any]) -> Iterator[Conclusion]:
    """Compares the mended runs with those at a tenth of the rate, seed by seed."""
    slow = {row.case.seed: row for row in runs(view, TENTH)}
    both = [
        (row, slow[row.case.seed])
        for row in runs(view, MENDED)
        if row.case.seed in slow and not is_bad(row) and not is_bad(slow[row.case.seed])
    ]
    pairs = [
        (mended, other, mine - theirs)
        for mended, other in both
        if (mine := last_loss(mended)) is not None and (theirs := last_loss(other)) is not None
    ]
    if not pairs:
        return
    told = Sentence()
    behind = [row.measurement for mended, other, _ in pairs for row in (mended, other)]
    gap = fmean(each for _, _, each in pairs)
    by = told("difference of the last loss", abs(gap), "count", *behind)
    n = told.count("seeds", len(pairs), behind)
    yield from told.end(
        f"Mended, and at the full rate, runs end {by} {'lower' if gap < 0 else 'higher'} in loss than at a "
        f"tenth of the rate, in the mean of {n} seeds."
    )


CLAIMS = (reproduction, operators, mending, recovery)
