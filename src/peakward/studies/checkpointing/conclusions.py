"""What the numbers of `checkpointing` say."""

from collections.abc import Sequence
from statistics import geometric_mean, mean

from peakward.records.case import Checkpointing
from peakward.records.study import Conclusion, Evidence
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
            "{mode} holds {share} of none's peak memory and takes {time} its time, geometric means over "
            "{n} cases (by case {least} to {most}, and {fastest} to {slowest}); it recomputes {again} of "
            "the model's FLOPs.",
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
    """How far each mode goes under one limit, beside keeping everything.

    Of searches that came to their end: where a probe timed out or crashed, the largest is unknown.
    """
    groups: dict[object, list[Found]] = {}
    for each in found:
        if each.bracket.stopped is None:
            search = each.search
            groups.setdefault((search.shape, search.axis, search.limit_bytes), []).append(each)
    return tuple(
        _largest(group[0], group[1:])
        for group in groups.values()
        if group[0].search.mode == "none" and any(each.bracket.fits for each in group[1:])
    )


def _largest(base: Found, others: Sequence[Found]) -> Conclusion:
    texts: list[str] = []
    fields: dict[str, Evidence] = {}
    for i, each in enumerate(each for each in others if each.bracket.fits):
        text, of_each = _ends(each, str(i))
        fields |= of_each
        if base.bracket.too_large is not None and base.bracket.fits:
            text += f", {{factor{i}}} or more"
            fields[f"factor{i}"] = _least_factor(each, base)
        texts.append(f"{each.search.mode} {text}")
    plain = "none"
    if base.bracket.fits:
        plain, of_plain = _ends(base, "_plain")
        fields |= of_plain
    return say(
        "Under {limit} the largest {what} of {model}: "
        + "; ".join((f"everything kept {plain}", *texts))
        + ".",
        limit=evidence("memory limit", base.search.limit_bytes, "bytes", *base.bracket.proofs),
        what=what(base),
        model=base.search.shape.name,
        **fields,
    )


def _ends(found: Found, key: str) -> tuple[str, dict[str, Evidence]]:
    """What fits and what does not: the search ends with a gap between them."""
    mode, bracket = found.search.mode, found.bracket
    most = evidence(f"fits with {mode}", bracket.fits, "count", *bracket.proofs)
    if bracket.too_large is None:
        return f"at least {{most{key}}}", {f"most{key}": most}
    over = evidence(f"does not fit with {mode}", bracket.too_large, "count", *bracket.proofs)
    text = f"at least {{most{key}}} ({{over{key}}} does not fit)"
    return text, {f"most{key}": most, f"over{key}": over}


def _least_factor(each: Found, base: Found) -> Evidence:
    """What fits over what does not fit with everything kept: the true factor is larger."""
    return evidence(
        f"{each.search.mode} over none, at least",
        each.bracket.fits / (base.bracket.too_large or 1),
        "ratio",
        *base.bracket.proofs,
        *each.bracket.proofs,
    )
