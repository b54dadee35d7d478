"""What the numbers of `checkpointing` say."""

from collections.abc import Sequence
from statistics import geometric_mean, mean

from peakward.records.case import Checkpointing
from peakward.records.study import Conclusion
from peakward.studies.checkpointing.grid import MODES, Cell
from peakward.studies.checkpointing.largest import Found
from peakward.studies.checkpointing.tables import what
from peakward.studies.parts import evidence, say


def costs(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """What each mode saves, costs and computes again, over the cases that ran with and without."""
    return tuple(each for mode in MODES if mode != "none" for each in _cost(cells, mode))


def _cost(cells: Sequence[Cell], mode: Checkpointing) -> tuple[Conclusion, ...]:
    known = [
        (cell, share, slower, cell.recomputed_share or 0.0)
        for cell in cells
        if cell.mode == mode
        and (share := cell.peak_share) is not None
        and (slower := cell.time_ratio) is not None
    ]
    if not known:
        return ()
    both = [each for cell, *_ in known for each in (cell.measurement, cell.plain)]
    shares, times = [each[1] for each in known], [each[2] for each in known]
    return (
        say(
            "{mode} holds {share} of none's peak memory ({least} to {most}) and takes {time} its time "
            "({fastest} to {slowest}), geometric means over {n} cases; it recomputes {again} of the "
            "model's FLOPs.",
            mode=mode,
            share=evidence("peak memory over none's", geometric_mean(shares), "share", *both),
            least=evidence("least peak memory over none's", min(shares), "share", *both),
            most=evidence("largest peak memory over none's", max(shares), "share", *both),
            time=evidence("time over none's", geometric_mean(times), "ratio", *both),
            fastest=evidence("least time over none's", min(times), "ratio", *both),
            slowest=evidence("largest time over none's", max(times), "ratio", *both),
            n=evidence("cases", len(known), "count", *both),
            again=evidence("recomputed FLOPs", mean(each[3] for each in known), "share", *both),
        ),
    )


def only_fits(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """Cases that run out of memory with everything kept and run with some of it recomputed."""
    said = []
    for mode in MODES:
        found = [cell for cell in cells if cell.mode == mode and _rescued(cell)]
        both = [each for cell in found for each in (cell.measurement, cell.plain)]
        if found:
            said.append(
                say(
                    "{mode} runs {n} cases for which none runs out of memory.",
                    mode=mode,
                    n=evidence("cases only with it", len(found), "count", *both),
                )
            )
    return tuple(said)


def _rescued(cell: Cell) -> bool:
    plain, own = cell.plain, cell.measurement
    return (plain and plain.status, own and own.status) == ("oom", "ok")


def largest(found: Sequence[Found]) -> tuple[Conclusion, ...]:
    """How much further each mode goes than keeping everything, under the same limit."""
    none = [each for each in found if each.search.mode == "none" and each.bracket.fits]
    return tuple(
        _grows(base, each)
        for base in none
        for each in found
        if each.search.mode != "none"
        and each.bracket.fits
        and (each.search.shape, each.search.axis, each.search.limit_bytes)
        == (base.search.shape, base.search.axis, base.search.limit_bytes)
    )


def _grows(base: Found, each: Found) -> Conclusion:
    proofs = (*base.bracket.proofs, *each.bracket.proofs)
    return say(
        "Under {limit} the largest {what} of {model} is {plain} with everything kept and {more} with "
        "{mode}, {factor} as much.",
        limit=evidence("memory limit", each.search.limit_bytes, "bytes", *proofs),
        what=what(each),
        model=each.search.shape.name,
        plain=evidence("largest with none", base.bracket.fits, "count", *base.bracket.proofs),
        more=evidence(
            f"largest with {each.search.mode}", each.bracket.fits, "count", *each.bracket.proofs
        ),
        mode=each.search.mode,
        factor=evidence("factor", each.bracket.fits / base.bracket.fits, "ratio", *proofs),
    )
