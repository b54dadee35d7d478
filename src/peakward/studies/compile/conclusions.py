"""What the numbers of `compile` say."""

import math
from collections.abc import Iterable, Sequence

from peakward.prediction.parameters import n_parameters
from peakward.records.study import Conclusion, Evidence
from peakward.studies.compile import grid, shapes
from peakward.studies.parts import evidence, say
from peakward.studies.readings import ratio, tokens_per_s
from peakward.studies.speedup import Speedup, losses


def speed(cells: Sequence[grid.Cell]) -> tuple[Conclusion, ...]:
    """What each mode gains on each subject, at the smallest and the largest size that ran."""
    said: list[Conclusion] = []
    for mode in dict.fromkeys(cell.mode for cell in cells if cell.mode != grid.EAGER):
        of_mode = [cell for cell in cells if cell.mode == mode]
        said += _gains(of_mode)
        said += losses([_pair(cell) for cell in of_mode], mode.name, _base(mode))
    return tuple(said)


def _gains(of_mode: Sequence[grid.Cell]) -> tuple[Conclusion, ...]:
    texts: list[str] = []
    fields: dict[str, Evidence] = {}
    for subject in grid.SUBJECTS:
        ran = [c for c in of_mode if c.subject == subject and _pair(c).speed is not None]
        ran.sort(key=lambda cell: n_parameters(cell.shape))
        ends = ran[:1] + ran[1:][-1:]
        names = [f"{subject}_{i}" for i in range(len(ends))]
        for name, cell in zip(names, ends, strict=True):
            fields |= _factor(name, cell)
        parts = (
            f"{{{n}}} ({{{n}_low}} to {{{n}_high}}; {c.shape.name})"
            for n, c in zip(names, ends, strict=True)
        )
        if ends:
            texts.append(f"{subject} {' to '.join(parts)}")
    if not texts:
        return ()
    mode = of_mode[0].mode
    text = "{mode} over {base}, in speed: " + "; ".join(texts) + "."
    return (say(text, mode=mode.name, base=_base(mode), **fields),)


def _base(mode: grid.Mode) -> str:
    """What a mode is held against: compiled against eager, and tf32 eager against fp32's."""
    if mode.compile == "none" or mode.precision == "fp32":
        return "fp32 eager"
    return f"{mode.precision} eager"


def _pair(cell: grid.Cell) -> Speedup:
    """`cell.speedup`, which for an eager mode would be over itself."""
    if cell.mode.compile == "none":
        return Speedup(base=cell.baseline, candidate=cell.measurement)
    return cell.speedup


def _factor(name: str, cell: grid.Cell) -> dict[str, Evidence]:
    """The speed-up and the ends of its interval, as fields of a sentence."""
    pair = _pair(cell)
    quantity = f"speed-up, {cell.subject} of {cell.shape.name}"
    assert pair.speed is not None
    ends = {"": pair.speed.estimate, "_low": pair.speed.low, "_high": pair.speed.high}
    return {
        name + end: evidence(
            quantity + end.replace("_", ", "), value, "ratio", pair.base, pair.candidate
        )
        for end, value in ends.items()
    }


def payback(cells: Sequence[grid.Cell]) -> tuple[Conclusion, ...]:
    """After how many train steps each mode has paid for its compilation, by size."""
    said = []
    for mode in dict.fromkeys(cell.mode for cell in cells):
        known = [
            (cell, cell.report.compile_s, steps)
            for cell in cells
            if cell.mode == mode
            and cell.subject == "train_step"
            and cell.report is not None
            and (steps := cell.payback_steps) is not None
        ]
        if known:
            said.append(_payback(mode, known))
    return tuple(said)


def _payback(mode: grid.Mode, known: Sequence[tuple[grid.Cell, float, float]]) -> Conclusion:
    texts, fields = [], {}
    for i, (cell, compile_s, steps) in enumerate(known):
        name = cell.shape.name
        fields[f"compile{i}"] = evidence(f"compile time, {name}", compile_s, "s", cell.measurement)
        if math.isfinite(steps):
            both = (cell.measurement, cell.eager)
            fields[f"steps{i}"] = evidence(f"steps, {name}", math.ceil(steps), "count", *both)
            texts.append(f"after {{steps{i}}} of {name} ({{compile{i}}} to compile)")
        else:
            texts.append(f"never in {name} ({{compile{i}}} to compile, and not measurably faster)")
    return say(
        "{mode} pays back, in train steps: " + "; ".join(texts) + ".", mode=mode.name, **fields
    )


def graphs(cells: Sequence[grid.Cell]) -> tuple[Conclusion, ...]:
    """Breaks and recompilations over the whole grid."""
    known = [(cell.measurement, cell.report) for cell in cells if cell.report is not None]
    if not known:
        return ()
    proof = [measurement for measurement, _ in known]
    return (
        say(
            "Over {n} compiled cases of fixed shape there were {breaks} graph breaks and {again} "
            "recompilations.",
            n=evidence("compiled cases", len(known), "count", *proof),
            breaks=evidence(
                "graph breaks", sum(each.n_graph_breaks for _, each in known), "count", *proof
            ),
            again=evidence(
                "recompilations", sum(each.n_recompiles for _, each in known), "count", *proof
            ),
        ),
    )


def changing(cells: Sequence[shapes.Cell]) -> tuple[Conclusion, ...]:
    """Whether padding to one length beats letting it change, for each engine, what each way takes to
    start, and after how many steps that has paid."""
    by_engine: dict[str, dict[str, shapes.Cell]] = {}
    for cell in cells:
        by_engine.setdefault(cell.engine, {})[cell.lengths] = cell
    plain = by_engine.get("eager", {}).get("changing")
    said: list[Conclusion] = []
    for pair in by_engine.values():
        changing, padded = pair["changing"], pair["padded"]
        said += (*_pad_or_not(changing, padded), *_starts(changing, padded))
        if plain is not None and changing.compiles:
            said += _against_eager(pair.values(), plain)
    return tuple(said)


def _pad_or_not(changing: shapes.Cell, padded: shapes.Cell) -> tuple[Conclusion, ...]:
    rates = tokens_per_s(changing.measurement), tokens_per_s(padded.measurement)
    factor = ratio(rates[1], rates[0])
    if factor is None or rates[0] is None or rates[1] is None:
        return ()
    return (
        say(
            "Under {engine}, once it is steady, padding to one length runs at {factor} the tokens/s of "
            "changing lengths ({padded} against {changing}).",
            engine=changing.engine,
            factor=evidence(
                "padded over changing", factor, "ratio", padded.measurement, changing.measurement
            ),
            padded=evidence("padded", rates[1], "tokens_per_s", padded.measurement),
            changing=evidence("changing", rates[0], "tokens_per_s", changing.measurement),
        ),
    )


def _starts(changing: shapes.Cell, padded: shapes.Cell) -> tuple[Conclusion, ...]:
    """Of what compiles or captures: the start of each way, and when the dearer of them has paid."""
    first, second = changing.start_s, padded.start_s
    if not changing.compiles or first is None or second is None:
        return ()
    texts: list[str] = []
    fields: dict[str, Evidence] = {}
    for cell, start_s in ((changing, first), (padded, second)):
        name = f"{cell.lengths}_"
        counts, of_counts = _counts(cell, name)
        texts.append(f"{{{name}start}} with {cell.lengths} lengths{counts}")
        fields |= of_counts
        fields[f"{name}start"] = evidence(f"start, {cell.lengths}", start_s, "s", cell.measurement)
    dear, cheap = (changing, padded) if first > second else (padded, changing)
    text = "Under {engine} a fresh process takes " + " and ".join(texts) + " to start"
    steps = shapes.steps_to_pay(dear, cheap)
    if steps is not None:
        paid = "is never made up for"
        if math.isfinite(steps):
            paid = "is made up for after {steps} steps"
            both = (dear.measurement, cheap.measurement)
            fields["steps"] = evidence("steps", math.ceil(steps), "count", *both)
        text += f"; the longer start, with {dear.lengths} lengths, {paid}"
    return (say(text + ".", engine=changing.engine, **fields),)


def _counts(cell: shapes.Cell, name: str) -> tuple[str, dict[str, Evidence]]:
    """The graphs that were compiled, as far as torch.compile was used."""
    report, of = cell.report, cell.measurement
    if report is None:
        return "", {}
    fields = {f"{name}graphs": evidence(f"graphs, {cell.lengths}", report.n_graphs, "count", of)}
    text = f"{{{name}graphs}} graphs compiled"
    if report.n_recompiles:
        fields[f"{name}again"] = evidence(
            f"recompilations, {cell.lengths}", report.n_recompiles, "count", of
        )
        text += f", {{{name}again}} of them anew for another length"
    if report.n_cached_graphs:
        fields[f"{name}cached"] = evidence(
            f"graphs from the disk cache, {cell.lengths}", report.n_cached_graphs, "count", of
        )
        text += f", {{{name}cached}} taken from the compiler's disk cache"
    return f" ({text})", fields


def _against_eager(ways: Iterable[shapes.Cell], plain: shapes.Cell) -> tuple[Conclusion, ...]:
    """After how many steps each way has paid for its start, beside eager steps of changing lengths."""
    texts: list[str] = []
    fields: dict[str, Evidence] = {}
    for cell in ways:
        steps = shapes.steps_to_pay(cell, plain)
        if steps is None:
            continue
        both = (cell.measurement, plain.measurement)
        extra_s = max(0.0, (cell.start_s or 0.0) - (plain.start_s or 0.0))
        fields[f"extra_{cell.lengths}"] = evidence(
            f"start beyond eager's, {cell.lengths}", extra_s, "s", *both
        )
        paid = "never"
        if math.isfinite(steps):
            paid = f"after {{steps_{cell.lengths}}} steps"
            fields[f"steps_{cell.lengths}"] = evidence(
                f"steps, {cell.lengths}", math.ceil(steps), "count", *both
            )
        texts.append(f"with {cell.lengths} lengths {paid} ({{extra_{cell.lengths}}} more to start)")
        engine = cell.engine
    if not texts:
        return ()
    text = "Beside eager steps of changing lengths, {engine} makes up for its longer start: "
    return (say(text + ", ".join(texts) + ".", engine=engine, **fields),)
