"""What the numbers of `attention` say."""

from collections.abc import Sequence

from peakward.records.measurement import Interval, Measurement
from peakward.records.study import Conclusion, Evidence
from peakward.report.format import format_cell
from peakward.stats.compare import median_ratio
from peakward.studies.attention.grid import Cell, groups, place
from peakward.studies.attention.limits import End
from peakward.studies.attention_arms import NAIVE, Attempt
from peakward.studies.parts import evidence, say
from peakward.studies.readings import distinct, time

PASSES = ("forward", "backward")


def fastest(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """The fastest arm against naive at the longest length at which both ran, of each pass."""
    said = (_fastest(group, name) for group in groups(cells) for name in PASSES)
    return tuple(each for each in said if each is not None)


def _fastest(group: Sequence[Cell], name: str) -> Conclusion | None:
    known: dict[int, dict[str, tuple[Interval, Measurement]]] = {}
    for cell in group:
        attempt: Attempt = getattr(cell, name)
        found = time(attempt.measurement)
        if found is not None and attempt.measurement is not None:
            known.setdefault(cell.seq_len, {})[cell.arm.name] = (found, attempt.measurement)
    both = [
        seq_len for seq_len, by_arm in known.items() if NAIVE.name in by_arm and len(by_arm) > 1
    ]
    if not both:
        return None
    by_arm = known[max(both)]
    naive_s, naive = by_arm[NAIVE.name]
    arm, (best_s, best) = min(by_arm.items(), key=lambda each: each[1][0].estimate)
    length = evidence("length", max(both), "count", naive)
    if arm == NAIVE.name:
        text = "In {place}, {name} at length {length}, nothing is faster than naive ({naive})."
        return say(
            text, place=place(group[0]), name=name, length=length, naive=_seconds(naive_s, naive)
        )
    ratio = median_ratio(best_s, naive_s)
    ends = ("low", ratio.low), ("high", ratio.high)
    return say(
        "In {place}, {name} at length {length}, {arm} is the fastest{though}: {ratio} the speed of "
        "naive ({low} to {high}; {best} against {naive}).",
        place=place(group[0]),
        name=name,
        length=length,
        arm=arm,
        though=_though(by_arm, arm),
        ratio=evidence(f"speed over naive, {name}", ratio.estimate, "ratio", naive, best),
        best=_seconds(best_s, best),
        naive=_seconds(naive_s, naive),
        **{end: evidence(f"{end} end of it", value, "ratio", naive, best) for end, value in ends},
    )


def _though(by_arm: dict[str, tuple[Interval, Measurement]], fastest: str) -> str:
    """Which other arms the fastest is not measurably faster than; naive is told by its own ratio."""
    best_s, _ = by_arm[fastest]
    near = [
        arm
        for arm, (found_s, _) in by_arm.items()
        if arm not in (fastest, NAIVE.name) and not distinct(best_s, found_s)
    ]
    return f", though not measurably faster than {' or '.join(near)}" if near else ""


def _seconds(found: Interval, source: Measurement) -> Evidence:
    return evidence("time", found.estimate, "s", source)


def held(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """The probability matrix's share of what naive holds, and who holds least, at the longest."""
    said = []
    for group in groups(cells):
        known = [cell for cell in group if cell.held_bytes is not None]
        naive = max(
            (cell for cell in known if cell.arm == NAIVE and cell.makes_matrix),
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
        naive.matrix_bytes / _held_bytes(naive),
        "share",
        source,
    )
    bytes_ = evidence("held by naive", _held_bytes(naive), "bytes", source)
    length = evidence("length", naive.seq_len, "count", source)
    text = (
        "In {place} at length {length} the probability matrix is {share} of the {bytes} that naive "
        "attention holds for backward"
    )
    if least.arm == naive.arm:
        return say(f"{text}.", place=place(naive), length=length, share=share, bytes=bytes_)
    return say(
        f"{text}; {{arm}} holds {{least}}.",
        place=place(naive),
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
