"""What the numbers of `layout` say."""

from collections.abc import Iterator, Sequence

from peakward.records.study import Conclusion
from peakward.studies.layout.grid import BASES
from peakward.studies.layout.tables import WORDS, base_of
from peakward.studies.parts import evidence, say
from peakward.studies.pieces import Timed, compared, groups, named, place

COPIED = " (copied)"


def costs(timed: Sequence[Timed]) -> Iterator[Conclusion]:
    """Of each work at each size, the layout that costs most against the plain one."""
    for group in groups(each for each in timed if each.case.subject in BASES):
        if group[0].case.subject == "projection":
            continue
        for base_name in BASES[group[0].case.subject]:
            base = named(group, base_name)
            others = [
                each
                for each in group
                if base is not None
                and base_of(each, group) == base
                and each != base
                and each.median_s is not None
                and not each.case.piece.endswith(COPIED)
            ]
            if others:
                worst = max(others, key=lambda each: each.median_s or 0.0)
                yield from compared(place(group[0].case), worst, base)


def copies(timed: Sequence[Timed]) -> Iterator[Conclusion]:
    """Whether a copy beforehand pays in the step that makes it."""
    for group in groups(timed):
        for each in group:
            plain = named(group, each.case.piece.removesuffix(COPIED))
            if each.case.piece.endswith(COPIED) and each.case.subject != "projection":
                yield from compared(place(each.case), each, plain)


def packing(timed: Sequence[Timed]) -> Iterator[Conclusion]:
    """Three projections against one, with and without the copies."""
    for group in groups(each for each in timed if each.case.subject == "projection"):
        separate = named(group, "separate")
        for piece in ("packed", "packed (copied)"):
            yield from compared(place(group[0].case), separate, named(group, piece))


def views(timed: Sequence[Timed]) -> Iterator[Conclusion]:
    """How many operations were views, copies or refused, and the names of those that were no views."""
    ran = [each for each in timed if each.case.subject == "view" and each.work is not None]
    if not ran:
        return
    by_result = {
        result: [each for each in ran if each.work is not None and each.work.result == result]
        for result in WORDS
    }
    measurements = [each.measurement for each in ran]
    yield say(
        "Of {n} operations on a matrix {views} are views of it. Copies: {copies} ({copying}); refused: "
        "{refused} ({refusing}).",
        n=evidence("operations", len(ran), "count", *measurements),
        views=evidence("views", len(by_result["view"]), "count", *measurements),
        copies=evidence("copies", len(by_result["new"]), "count", *measurements),
        refused=evidence("refused", len(by_result["refused"]), "count", *measurements),
        copying=", ".join(each.case.piece for each in by_result["new"]) or "none",
        refusing=", ".join(each.case.piece for each in by_result["refused"]) or "none",
    )
