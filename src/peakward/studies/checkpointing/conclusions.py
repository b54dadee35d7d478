"""What the numbers of `checkpointing` say."""

from collections.abc import Sequence
from statistics import geometric_mean, mean

from peakward.records.case import Checkpointing
from peakward.records.memory import MemoryPhase
from peakward.records.study import Conclusion, Evidence
from peakward.report.format import format_cell
from peakward.studies.cases import place
from peakward.studies.checkpointing.grid import MODES, Cell
from peakward.studies.checkpointing.largest import Found
from peakward.studies.checkpointing.tables import what
from peakward.studies.parts import evidence, say

PHASES: dict[MemoryPhase | None, str] = {
    "backward": "in the backward pass",
    "forward": "in the forward pass",
    "optimizer": "in the optimizer's step, which holds no activations",
    "build": "in the building of the model",
    None: "in a phase that is not known",
}
"""Where the peak of keeping everything lies, as a sentence says it."""


def costs(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """What each mode saves, by where keeping everything has its peak; what it costs and computes again;
    over the cases that ran with and without."""
    said: list[Conclusion] = []
    for mode in MODES:
        of_mode = [cell for cell in cells if cell.mode == mode != "none"]
        said += (*_memory(mode, of_mode), *_time(mode, of_mode))
    return tuple(said)


def _memory(mode: Checkpointing, cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """No mean over phases: recomputation frees activations, and lowers no peak that has none."""
    texts: list[str] = []
    fields: dict[str, Evidence] = {}
    for phase, where in PHASES.items():
        known = [
            (cell, share)
            for cell in cells
            if cell.plain_phase == phase and (share := cell.peak_share) is not None
        ]
        if known:
            text, of_phase = _shares(known, phase or "unknown")
            fields |= of_phase
            texts.append(f"{text}, where that peak lies {where}")
    if not texts:
        return ()
    return (
        say("{mode} holds of none's peak memory: " + "; ".join(texts) + ".", mode=mode, **fields),
    )


def _shares(known: Sequence[tuple[Cell, float]], key: str) -> tuple[str, dict[str, Evidence]]:
    """The share of one case, of several that print alike, or their range with its ends named."""
    both = [each for cell, _ in known for each in (cell.measurement, cell.plain)]
    least, most = min(known, key=lambda each: each[1]), max(known, key=lambda each: each[1])
    fields = {f"least_{key}": evidence(f"peak over none's, {key}", least[1], "share", *both)}
    if len(known) == 1:
        return f"{{least_{key}}} ({place(least[0].case)})", fields
    fields[f"n_{key}"] = evidence(f"cases, {key}", len(known), "count", *both)
    if format_cell(least[1], "share") == format_cell(most[1], "share"):
        return f"{{least_{key}}} in each of {{n_{key}}} cases", fields
    fields[f"most_{key}"] = evidence(f"largest peak over none's, {key}", most[1], "share", *both)
    ends = (
        f"{{{end}_{key}}} ({place(cell.case)})"
        for end, (cell, _) in (("least", least), ("most", most))
    )
    return f"{' to '.join(ends)} over {{n_{key}}} cases", fields


def _time(mode: Checkpointing, cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    known = [
        (cell, slower, cell.recomputed_share or 0.0)
        for cell in cells
        if (slower := cell.time_ratio) is not None
    ]
    if not known:
        return ()
    both = [each for cell, *_ in known for each in (cell.measurement, cell.plain)]
    times = [slower for _, slower, _ in known]
    text = "{mode} takes {time} none's time ({place})"
    fields: dict[str, Evidence] = {}
    if len(known) > 1:
        text = (
            "{mode} takes {time} none's time, the geometric mean over {n} cases ({fastest} to {slowest} by "
            "case)"
        )
        fields = {
            "fastest": evidence("least time over none's", min(times), "ratio", *both),
            "slowest": evidence("largest time over none's", max(times), "ratio", *both),
            "n": evidence("cases", len(known), "count", *both),
        }
    return (
        say(
            text + "; it recomputes {again} of the model's FLOPs.",
            mode=mode,
            time=evidence("time over none's", geometric_mean(times), "ratio", *both),
            place=place(known[0][0].case),
            again=evidence("recomputed FLOPs", mean(each[2] for each in known), "share", *both),
            **fields,
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
                    "{mode} runs {n} "
                    + ("case" if len(found) == 1 else "cases")
                    + " for which none runs out of "
                    "memory.",
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
