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
    """How far each mode goes under one limit, beside keeping everything."""
    groups: dict[object, list[Found]] = {}
    for each in found:
        if each.bracket.fits:
            search = each.search
            groups.setdefault((search.shape, search.axis, search.limit_bytes), []).append(each)
    return tuple(
        _largest(group[0], group[1:])
        for group in groups.values()
        if group[0].search.mode == "none" and len(group) > 1
    )


def _largest(base: Found, others: Sequence[Found]) -> Conclusion:
    texts, fields = [], {}
    for i, each in enumerate(others):
        mode, proofs = each.search.mode, each.bracket.proofs
        texts.append(f"{{most{i}}} with {mode} ({{factor{i}}})")
        fields[f"most{i}"] = evidence(f"largest with {mode}", each.bracket.fits, "count", *proofs)
        fields[f"factor{i}"] = evidence(
            f"{mode} over none",
            each.bracket.fits / base.bracket.fits,
            "ratio",
            *base.bracket.proofs,
            *proofs,
        )
    return say(
        "Under {limit} the largest {what} of {model} is {plain} with everything kept, "
        + ", ".join(texts)
        + ".",
        limit=evidence("memory limit", base.search.limit_bytes, "bytes", *base.bracket.proofs),
        what=what(base),
        model=base.search.shape.name,
        plain=evidence("largest with none", base.bracket.fits, "count", *base.bracket.proofs),
        **fields,
    )
