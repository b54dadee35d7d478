"""What the numbers of `flash` say."""

from collections.abc import Container, Sequence
from itertools import takewhile
from typing import NamedTuple

from peakward.records.calibration import Calibration
from peakward.records.case import OperatorCase
from peakward.records.measurement import Interval
from peakward.records.study import Conclusion, Evidence
from peakward.stats.compare import median_ratio
from peakward.studies.attention_arms import Arm, products
from peakward.studies.flash import launches
from peakward.studies.flash.grid import ARMS, Cell, groups, place, subject
from peakward.studies.parts import evidence, say
from peakward.studies.readings import processes
from peakward.studies.rivals import Rival, not_timed, rank
from peakward.studies.speedup import Speedup, gains


def best(cells: Sequence[Cell], of: Calibration | None) -> tuple[Conclusion, ...]:
    """The highest rate that each of ours reaches, by precision, head dim and pass, where it is more than a
    host's launches."""
    said, bound = [], launches.host_bound(cells)
    for arm in subject(cells):
        for group in groups(cells):
            known = [
                (each.rate, each)
                for each in group
                if each.arm == arm and each.attempt.case not in bound
            ]
            rates = [(rate, each) for rate, each in known if rate is not None]
            if rates:
                said.append(_best(*max(rates, key=lambda pair: pair[0].estimate), of))
    return tuple(said)


def _best(rate: Interval, cell: Cell, of: Calibration | None) -> Conclusion:
    source = cell.attempt.measurement
    text = "In {place}, {arm} reaches most at length {length}: {rate} ({low} to {high}{processes})"
    fields: dict[str, str | Evidence] = {
        "place": place(cell),
        "arm": cell.arm.name,
        "length": evidence("length", cell.seq_len, "count", source),
        "processes": processes(source),
        "rate": evidence("rate", rate.estimate, "flops_per_s", source),
        "low": evidence("rate, low end", rate.low, "flops_per_s", source),
        "high": evidence("rate, high end", rate.high, "flops_per_s", source),
    }
    if cell.roof_share is None:
        return say(f"{text}.", **fields)
    share = evidence("share of the roof", cell.roof_share, "share", source, of)
    how = products(cell.attempt.case)
    assert how is not None  # Where there is a share, its roof is known.
    roof = f"{how.compute_type} matmul roof"
    if how.n_parts > 1:
        roof += f" for a product made of {how.n_parts}"
    return say(f"{text}, {{share}} of the {roof}.", share=share, **fields)


def against(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """What each of ours gains over every rival, over all sizes and passes at which both ran and neither
    mostly waited for its host."""
    bound = launches.host_bound(cells)
    known = [cell for cell in cells if cell.attempt.case not in bound]
    return tuple(
        each
        for ours in subject(cells)
        for rival in ARMS
        if rival not in subject(cells)
        for each in gains(_pairs(known, ours, rival), ours.name, rival.name)
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
    untimed: tuple[Rival, ...]
    """The rivals that have no time at this length."""


def crossovers(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """From which length on one of ours is the fastest, by precision, head dim and pass; lengths at which
    one of the two mostly waited for its host are left out."""
    ours = {arm.name for arm in subject(cells)}
    bound = launches.host_bound(cells)
    duels = [(group, _duels(group, ours, bound)) for group in groups(cells)]
    return tuple(_crossover(group, fought) for group, fought in duels if fought)


def _duels(
    group: Sequence[Cell], ours: set[str], bound: Container[OperatorCase]
) -> tuple[Duel, ...]:
    """Shortest length first; where both sides have a time."""
    fought = []
    for seq_len in sorted({cell.seq_len for cell in group}):
        by_name = {cell.arm.name: cell for cell in group if cell.seq_len == seq_len}
        found = [cell.attempt.rival(name) for name, cell in by_name.items()]
        mine = rank(each for each in found if each.name in ours)
        theirs = rank(each for each in found if each.name not in ours)
        if not mine.timed or not theirs.timed:
            continue
        first, second = mine.timed[0], theirs.timed[0]
        sides = by_name[first.name], by_name[second.name]
        assert first.time is not None and second.time is not None
        if not any(cell.attempt.case in bound for cell in sides):
            fought.append(Duel(*sides, median_ratio(first.time, second.time), theirs.untimed))
    return tuple(fought)


def _crossover(group: Sequence[Cell], fought: tuple[Duel, ...]) -> Conclusion:
    won = tuple(takewhile(lambda duel: duel.speed.low > 1, reversed(fought)))
    last = fought[-1]
    ends = (
        ("ratio", "speed over the fastest other", last.speed.estimate),
        ("low", "its low end", last.speed.low),
        ("high", "its high end", last.speed.high),
    )
    fields: dict[str, str | Evidence] = {
        "place": place(group[0]),
        "arm": last.ours.arm.name,
        "rival": last.rival.arm.name,
        "length": _length(last),
        "processes": processes(last.ours.attempt.measurement, last.rival.attempt.measurement),
    }
    fields |= {name: _speed(last, quantity, value) for name, quantity, value in ends}
    said = "{arm} runs at {ratio} the speed of {rival} ({low} to {high}{processes})"
    if not won:
        text = "not" if last.speed.high < 1 else "not measurably"
        return say(f"In {{place}}, {text} the fastest at length {{length}}: {said}.", **fields)
    untimed = [each for duel in won for each in duel.untimed]
    title = "the fastest of those timed" if untimed else "the fastest"
    where = "at length {length}"
    if len(won) > 1:
        fields["since"] = _length(won[-1])
        at_all = len(won) == len({cell.seq_len for cell in group})
        where = "at every length" if at_all else "from length {since} on"
        said = f"at length {{length}} {said}"
    elif len(fought) > 1:
        where += " alone"
    return say(
        f"In {{place}}, {title} {where}: {said}{{absent}}.", absent=not_timed(untimed), **fields
    )


def _length(duel: Duel) -> Evidence:
    both = (duel.ours.attempt.measurement, duel.rival.attempt.measurement)
    return evidence("length", duel.ours.seq_len, "count", *both)


def _speed(duel: Duel, quantity: str, value: float) -> Evidence:
    both = (duel.ours.attempt.measurement, duel.rival.attempt.measurement)
    return evidence(quantity, value, "ratio", *both)
