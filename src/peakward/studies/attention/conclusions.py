"""What the numbers of `attention` say."""

from collections.abc import Iterator, Sequence

from peakward.records.study import Conclusion, Evidence
from peakward.report.format import format_cell
from peakward.stats.compare import median_ratio
from peakward.studies.attention.grid import Cell, groups, place
from peakward.studies.attention.limits import End
from peakward.studies.attention_arms import NAIVE
from peakward.studies.parts import evidence, say
from peakward.studies.readings import processes
from peakward.studies.rivals import Ranking, Rival, rank

PASSES = ("forward", "backward")


def fastest(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """The fastest arm in the precision of the inputs against naive, at the longest length at which both
    ran, of each pass; and what another precision of the products gains there."""
    return tuple(
        said for group in groups(cells) for name in PASSES for said in _of_pass(group, name)
    )


def _of_pass(group: Sequence[Cell], name: str) -> Iterator[Conclusion]:
    for seq_len in sorted({cell.seq_len for cell in group}, reverse=True):
        there = [cell for cell in group if cell.seq_len == seq_len]
        rivals = {cell: getattr(cell, name).rival(cell.arm.name) for cell in there}
        ranking = rank(rivals[cell] for cell in there if cell.arm.precision is None)
        naive = next((each for each in ranking.timed if each.name == NAIVE.name), None)
        if naive is None or len(ranking.timed) == 1:
            continue
        yield _fastest(there[0], name, ranking, naive)
        for cell, rival in rivals.items():
            if cell.arm.precision is not None and rival.time is not None:
                yield _in_other_precision(cell, name, rival, naive)
        return


def _fastest(cell: Cell, name: str, ranking: Ranking, naive: Rival) -> Conclusion:
    best = ranking.timed[0]
    fields: dict[str, str | Evidence] = {
        "place": place(cell),
        "name": name,
        "length": evidence("length", cell.seq_len, "count", naive.measurement),
        "naive": _seconds(naive),
        "absent": ranking.absent,
    }
    if best == naive:
        text = "In {place}, {name} at length {length}, nothing that was timed is faster than naive ({naive})"
        return say(text + "{absent}.", **fields)
    return say(
        "In {place}, {name} at length {length}, {arm} is {title}{though}: {ratio} the speed of naive ({low} "
        "to {high}{processes}; {best} against {naive}){absent}.",
        arm=best.name,
        title=ranking.title,
        though=_though(ranking),
        best=_seconds(best),
        **_speed(best, naive, name),
        **fields,
    )


def _in_other_precision(cell: Cell, name: str, rival: Rival, naive: Rival) -> Conclusion:
    return say(
        "In {place}, {name} at length {length}, {arm} computes its products in {other}, so that it is no "
        "rival of the others: {ratio} the speed of naive in {own} ({low} to {high}{processes}; {time}).",
        place=place(cell),
        name=name,
        length=evidence("length", cell.seq_len, "count", rival.measurement),
        arm=rival.name,
        other=cell.arm.precision or "",
        own=cell.precision,
        time=_seconds(rival),
        **_speed(rival, naive, name),
    )


def _speed(rival: Rival, naive: Rival, name: str) -> dict[str, str | Evidence]:
    """The ratio to naive's time, its ends, and within how many processes they are."""
    assert rival.time is not None and naive.time is not None
    both = (naive.measurement, rival.measurement)
    ratio = median_ratio(rival.time, naive.time)
    return {
        "ratio": evidence(f"speed over naive, {name}", ratio.estimate, "ratio", *both),
        "low": evidence("low end of it", ratio.low, "ratio", *both),
        "high": evidence("high end of it", ratio.high, "ratio", *both),
        "processes": processes(*both),
    }


def _though(ranking: Ranking) -> str:
    """Which other arms the fastest is not measurably faster than; naive is told by its own ratio."""
    near = [each.name for each in ranking.near if each.name != NAIVE.name]
    return f", though not measurably faster than {' or '.join(near)}" if near else ""


def _seconds(rival: Rival) -> Evidence:
    assert rival.time is not None
    return evidence("time", rival.time.estimate, "s", rival.measurement)


def held(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """The probability matrix's share of what naive holds, and who holds least, at the longest."""
    said = []
    for group in groups(cells):
        known = [cell for cell in group if cell.held_bytes is not None]
        naive = max(
            (cell for cell in known if cell.matrix_share is not None),
            key=lambda cell: cell.seq_len,
            default=None,
        )
        if naive is not None:
            beside = [cell for cell in known if cell.seq_len == naive.seq_len]
            said.append(_held_by(naive, min(beside, key=_held_bytes)))
    return tuple(said)


def _held_bytes(cell: Cell) -> int:
    assert cell.held_bytes is not None
    return cell.held_bytes


def _held_by(naive: Cell, least: Cell) -> Conclusion:
    source = naive.backward.measurement
    share = evidence(
        "the probability matrix's share",
        naive.matrix_share or 0.0,
        "share",
        source,
    )
    bytes_ = evidence("held by naive", _held_bytes(naive), "bytes", source)
    length = evidence("length", naive.seq_len, "count", source)
    copies = ", in fp32 and its copy in bf16," if naive.precision == "bf16" else ""
    text = (
        "In {place} at length {length} the probability matrix{copies} is {share} of the {bytes} that naive "
        "attention holds for backward"
    )
    if least.arm == naive.arm:
        return say(
            f"{text}.", place=place(naive), copies=copies, length=length, share=share, bytes=bytes_
        )
    return say(
        f"{text}; {{arm}} holds {{least}}.",
        place=place(naive),
        copies=copies,
        length=length,
        share=share,
        bytes=bytes_,
        arm=least.arm.name,
        least=evidence(
            f"held by {least.arm.name}", _held_bytes(least), "bytes", least.backward.measurement
        ),
    )


def limits(ends: Sequence[End]) -> tuple[Conclusion, ...]:
    """Where naive runs out of memory, by limit."""
    return tuple(_limit(end) for end in ends if end.failure and end.failure.verdict == "oom")


def _limit(end: End) -> Conclusion:
    assert end.failure is not None and end.fails is not None
    fails = evidence("length that does not fit", end.fails, "count", end.failure.proof)
    limit = format_cell(end.limit_bytes, "bytes")
    if end.proof is None or end.fits is None:
        text = (
            "Under {limit}, {place}, naive attention runs out of memory at length {fails} already."
        )
        return say(text, limit=limit, place=place(end.first), fails=fails)
    return say(
        "Under {limit}, {place}, naive attention runs forward and backward up to length {fits} and "
        "is out of memory at {fails}.",
        limit=limit,
        place=place(end.first),
        fits=evidence("longest length that fits", end.fits, "count", end.proof.proof),
        fails=fails,
    )
