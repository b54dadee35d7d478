"""What the numbers of `fusion` say."""

from collections.abc import Iterator, Sequence

from peakward.records.calibration import Calibration
from peakward.records.study import Conclusion, Evidence
from peakward.studies.fusion.grid import ONLINE_KERNEL, PIECES
from peakward.studies.parts import Source, evidence, say
from peakward.studies.pieces import (
    Timed,
    compared,
    copy_share,
    groups,
    named,
    passes_at_copy,
    place,
)
from peakward.studies.rivals import Rival, not_timed


def passes(timed: Sequence[Timed], of: Calibration | None) -> Iterator[Conclusion]:
    """How often each way goes over memory at the largest inputs of each subject: what its calls have for
    operands, and what its time leaves room for."""
    for group in _largest(timed):
        counted = [(each, each.passes, each.measurement) for each in group if each.passes]
        inferred = [
            (each, found, each.measurement)
            for each in group
            if (found := passes_at_copy(each, of)) is not None
        ]
        if not counted:
            continue
        text = "Passes over the inputs of {where}, each operand of a call once: {counted}"
        fields = {f"c{i}": _passes("operands' passes", *each) for i, each in enumerate(counted)}
        words = ", ".join(f"{each.name} {{c{i}}}" for i, (each, _, _) in enumerate(counted))
        text = text.replace("{counted}", words)
        if inferred:
            text += "; inferred from time and copy bandwidth, at most: "
            text += ", ".join(f"{each.name} {{i{i}}}" for i, (each, _, _) in enumerate(inferred))
            fields |= {
                f"i{i}": _passes("passes at the copy bandwidth", *each, of)
                for i, each in enumerate(inferred)
            }
        yield say(f"{text}.", where=place(group[0].case), **fields)


def _passes(quantity: str, each: Timed, value: float, *sources: Source | None) -> Evidence:
    return evidence(f"{quantity}, {each.name}", value, "count", *sources)


def times(timed: Sequence[Timed]) -> Iterator[Conclusion]:
    """Separate calls against the fastest way, at every size; the online softmax against three passes, as a
    loop of calls, each of which goes over memory again, and in the one kernel that it is meant for."""
    for group in groups(timed):
        for online in ("online", ONLINE_KERNEL):
            where = place(group[0].case)
            yield from compared(where, named(group, online), named(group, "three passes"))
        known = [each for each in group if each.median_s is not None]
        if len(known) < 2 or known[0].case.piece != PIECES[group[0].case.subject][0]:
            continue
        fastest = min(known[1:], key=lambda each: each.median_s or 0.0)
        yield from compared(place(group[0].case), known[0], fastest)


def shares(timed: Sequence[Timed], of: Calibration | None) -> Iterator[Conclusion]:
    """The best share of the bandwidth that each subject reaches at its largest inputs."""
    for group in _largest(timed):
        known = [each for each in group if copy_share(each, of) is not None]
        if not known:
            continue
        best = max(known, key=lambda each: copy_share(each, of) or 0.0)
        absent = not_timed(
            Rival(name=each.name, measurement=each.measurement)
            for each in group
            if each.time is None
        )
        yield say(
            "Nearest to the copy bandwidth at {where} comes{among} {piece}, with {share} of it{absent}.",
            where=place(best.case),
            among=" of those timed" if absent else "",
            absent=absent,
            piece=best.name,
            share=evidence(
                "share of the copy bandwidth",
                copy_share(best, of) or 0.0,
                "share",
                best.measurement,
                of,
            ),
        )


def equality(timed: Sequence[Timed]) -> Iterator[Conclusion]:
    """The largest difference from fp64 in each precision, and whose it is."""
    for precision in dict.fromkeys(each.case.precision for each in timed):
        known = [
            (each.work.difference, each)
            for each in timed
            if each.case.precision == precision
            and each.work is not None
            and each.work.difference is not None
        ]
        if not known:
            continue
        most, worst = max(known, key=lambda each: each[0])
        yield say(
            "In {precision} no piece differs from fp64 by more than {most} of the largest value "
            "({piece}, {where}).",
            precision=precision,
            most=evidence("largest difference from fp64", most, "count", worst.measurement),
            piece=worst.name,
            where=place(worst.case),
        )


def _largest(timed: Sequence[Timed]) -> tuple[tuple[Timed, ...], ...]:
    """Of each subject and precision the group with the most elements that was run at all."""
    found: dict[tuple[str, str], tuple[Timed, ...]] = {}
    ran = [group for group in groups(timed) if any(each.work for each in group)]
    for group in sorted(ran, key=lambda each: each[0].case.sizes[0] * each[0].case.sizes[1]):
        found[group[0].case.subject, group[0].case.precision] = group
    return tuple(group for group in ran if group in found.values())
