"""What the numbers of `flash` say."""

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from peakward.records.calibration import Calibration
from peakward.records.measurement import Interval
from peakward.records.study import Conclusion, Evidence
from peakward.stats.compare import median_ratio
from peakward.studies.attention_arms import Arm
from peakward.studies.flash.grid import ARMS, Cell, groups, place, subject
from peakward.studies.parts import evidence, say
from peakward.studies.readings import time
from peakward.studies.speedup import Speedup, gains


def best(cells: Sequence[Cell], of: Calibration | None) -> tuple[Conclusion, ...]:
    """The highest rate that each of ours reaches, by precision, head dim and pass."""
    said = []
    for arm in subject(cells):
        for group in groups(cells):
            known = [(each.rate, each) for each in group if each.arm == arm]
            rates = [(rate, each) for rate, each in known if rate is not None]
            if rates:
                said.append(_best(*max(rates, key=lambda pair: pair[0].estimate), of))
    return tuple(said)


def _best(rate: Interval, cell: Cell, of: Calibration | None) -> Conclusion:
    source = cell.attempt.measurement
    text = "In {place}, {arm} reaches most at length {length}: {rate} ({low} to {high})"
    fields: dict[str, str | Evidence] = {
        "place": place(cell),
        "arm": cell.arm.name,
        "length": evidence("length", cell.seq_len, "count", source),
        "rate": evidence("rate", rate.estimate, "flops_per_s", source),
        "low": evidence("rate, low end", rate.low, "flops_per_s", source),
        "high": evidence("rate, high end", rate.high, "flops_per_s", source),
    }
    if cell.roof_share is None:
        return say(f"{text}.", **fields)
    share = evidence("share of the roof", cell.roof_share, "share", source, of)
    return say(f"{text}, {{share}} of the matmul roof.", share=share, **fields)


def against(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """What each of ours gains over every rival, over all sizes and passes at which both ran."""
    return tuple(
        each
        for ours in subject(cells)
        for rival in ARMS
        if rival not in subject(cells)
        for each in gains(_pairs(cells, ours, rival), ours.name, rival.name)
    )


def _pairs(cells: Sequence[Cell], ours: Arm, rival: Arm) -> list[Speedup]:
    found = {(_size(cell), cell.arm.name): cell.attempt.measurement for cell in cells}
    return [
        Speedup(base=found.get((size, rival.name)), candidate=found.get((size, ours.name)))
        for size in dict.fromkeys(_size(cell) for cell in cells)
    ]


def _size(cell: Cell) -> tuple[str, int, str, int]:
    return cell.precision, cell.head_dim, cell.pass_, cell.seq_len


class Duel(NamedTuple):
    """The fastest of ours against the fastest rival at one length."""

    ours: Cell
    rival: Cell
    speed: Interval
    """Of ours over the rival's: above 1 is faster."""


def crossovers(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """From which length on one of ours is the fastest of all, by precision, head dim and pass."""
    ours = {arm.name for arm in subject(cells)}
    duels = [(group[0], _duels(group, ours)) for group in groups(cells)]
    return tuple(_crossover(first, fought) for first, fought in duels if fought)


def _duels(group: Sequence[Cell], ours: set[str]) -> tuple[Duel, ...]:
    """Shortest length first; where both sides have a time."""
    fought = []
    for seq_len in sorted({cell.seq_len for cell in group}):
        known = [
            (found, cell)
            for cell in group
            if cell.seq_len == seq_len and (found := time(cell.attempt.measurement)) is not None
        ]
        sides = [
            min(side, key=lambda each: each[0].estimate)
            for side in (
                [each for each in known if each[1].arm.name in ours],
                [each for each in known if each[1].arm.name not in ours],
            )
            if side
        ]
        if len(sides) == 2:
            (mine_s, mine), (theirs_s, theirs) = sides
            fought.append(Duel(mine, theirs, median_ratio(mine_s, theirs_s)))
    return tuple(fought)


def _crossover(first: Cell, fought: tuple[Duel, ...]) -> Conclusion:
    won = tuple(takewhile(lambda duel: duel.speed.low > 1, reversed(fought)))
    last, since = fought[-1], won[-1] if won else None
    ratio = {
        name: _speed(last, quantity, value)
        for name, quantity, value in (
            ("ratio", "speed over the fastest other", last.speed.estimate),
            ("low", "its low end", last.speed.low),
            ("high", "its high end", last.speed.high),
        )
    }
    fields: dict[str, str | Evidence] = {
        **ratio,
        "place": place(first),
        "arm": last.ours.arm.name,
        "rival": last.rival.arm.name,
        "longest": _length(last),
    }
    said = "at length {longest} {arm} runs at {ratio} the speed of {rival} ({low} to {high})."
    if last.speed.high < 1:
        return say("In {place}, not the fastest at the longest: " + said, **fields)
    if since is None:
        return say("In {place}, not measurably the fastest at the longest: " + said, **fields)
    if len(won) == len(fought):
        return say("In {place}, the fastest at every length: " + said, **fields)
    if len(won) == 1:
        return say("In {place}, the fastest at the longest alone: " + said, **fields)
    fields["since"] = _length(since)
    return say("In {place}, the fastest from length {since} on: " + said, **fields)


def _length(duel: Duel) -> Evidence:
    both = (duel.ours.attempt.measurement, duel.rival.attempt.measurement)
    return evidence("length", duel.ours.seq_len, "count", *both)


def _speed(duel: Duel, quantity: str, value: float) -> Evidence:
    both = (duel.ours.attempt.measurement, duel.rival.attempt.measurement)
    return evidence(quantity, value, "ratio", *both)
