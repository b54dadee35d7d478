"""What the numbers of `memory` say."""

from collections.abc import Sequence

from peakward.records.measurement import Measurement
from peakward.records.memory import CaseMemory
from peakward.records.study import Conclusion, Evidence
from peakward.studies.memory.grid import Cell, kept_name, named, residual_bytes
from peakward.studies.memory.tables import block_bytes
from peakward.studies.parts import evidence, say
from peakward.studies.power_law import exponent
from peakward.studies.readings import ratio
from peakward.traces.memory.case_memory import part

SOFTMAX = "blocks.*.attention.softmax"


def shares(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """What the peak of each of these steps is made of."""
    return tuple(said for cell in cells for said in _shares(cell))


def _shares(cell: Cell) -> tuple[Conclusion, ...]:
    peak, memory = cell.peak, cell.memory
    if peak is None or memory is None:
        return ()
    fields: dict[str, Evidence] = {}
    texts = []
    for each in peak.purposes:
        name = kept_name(memory) if each.name == "activations" else each.name.replace("_", " ")
        share = ratio(each.n_bytes, peak.allocated_bytes) or 0.0
        fields[each.name] = evidence(f"share of {name}", share, "share", cell.memory)
        texts.append(f"{name} {{{each.name}}}")
    return (
        say(
            "{place} holds most in the phase {phase}, {peak}: " + ", ".join(texts) + ".",
            place=named(cell),
            phase=peak.phase,
            peak=evidence("peak of the step", peak.allocated_bytes, "bytes", cell.memory),
            **fields,
        ),
    )


def growth(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """The exponents in the sequence length of what a train step keeps, by size and precision."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.activations_bytes is not None:
            key = (cell.case.model.name, cell.case.configuration.precision)
            groups.setdefault(key, []).append(cell)
    return tuple(said for group in groups.values() for said in _growth(group))


def _growth(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    lengths = [cell.case.workload.seq_len for cell in cells]
    sources = [cell.memory for cell in cells if cell.memory is not None]
    kept = [sum(each.n_bytes for each in memory.modules) for memory in sources]
    softmax = [_softmax_bytes(memory) for memory in sources]
    whole = exponent(lengths, kept)
    if whole is None:
        return ()
    case = cells[0].case
    fields = {"whole": evidence("exponent of activations", whole, "count", *sources)}
    text = (
        "From {first} to {last} tokens the {kept} of {model} in {precision} grow as the sequence "
        "length to the power {whole}"
    )
    rest = exponent(lengths, softmax) if all(softmax) else None
    if rest is not None:
        fields["softmax"] = evidence("exponent of the softmax's", rest, "count", *sources)
        fields["least"] = _share("shortest", softmax[0] / kept[0], sources[0])
        fields["most"] = _share("longest", softmax[-1] / kept[-1], sources[-1])
        text += (
            ", the softmax's results among them, {least} at the shortest and {most} at the longest, "
            "to the power {softmax}"
        )
    return (
        say(
            text + ".",
            kept=kept_name(sources[-1]),
            first=str(min(lengths)),
            last=str(max(lengths)),
            model=case.model.name,
            precision=case.configuration.precision,
            **fields,
        ),
    )


def _softmax_bytes(memory: CaseMemory) -> int:
    return sum(each.n_bytes for each in memory.modules if part(each.module) == SOFTMAX)


def _share(which: str, share: float, source: CaseMemory) -> Evidence:
    return evidence(f"softmax's share of activations, {which}", share, "share", source)


def residual(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """What a block keeps, in activations of the residual stream."""
    return tuple(
        say(
            "One activation of the residual stream of {place} takes {one}; of {kept} a block keeps "
            "{n} that for the backward pass.",
            place=named(cell),
            kept=kept_name(cell.memory),
            one=evidence(
                "one activation of the residual stream",
                residual_bytes(cell.case),
                "bytes",
                cell.memory,
            ),
            n=evidence(
                "a block's activations over one of the residual stream",
                kept / residual_bytes(cell.case),
                "ratio",
                cell.memory,
            ),
        )
        for cell in cells
        if cell.memory is not None and (kept := block_bytes(cell))
    )


def predicted(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """The least and the most that predictions are of what was held."""
    known = [(over, cell) for cell in cells if (over := cell.predicted_over_actual) is not None]
    if not known:
        return ()
    (low, least), (high, most) = (pick(known, key=lambda each: each[0]) for pick in (min, max))
    return (
        say(
            "Over {n} cases the predicted peak is from {low} ({where_low}) to {high} ({where_high}) of "
            "what was held.",
            n=evidence("cases", len(known), "count", *(_source(cell) for _, cell in known)),
            low=evidence("predicted over held, least", low, "share", _source(least)),
            where_low=named(least),
            high=evidence("predicted over held, most", high, "share", _source(most)),
            where_high=named(most),
        ),
    )


def _source(cell: Cell) -> Measurement | CaseMemory | None:
    return cell.measurement if cell.case.device == "cuda" else cell.memory
