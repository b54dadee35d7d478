"""What the numbers of `compile` say."""

import math
from collections.abc import Sequence

from peakward.records.study import Conclusion
from peakward.studies.compile import grid, shapes
from peakward.studies.parts import evidence, say
from peakward.studies.readings import ratio, tokens_per_s
from peakward.studies.speedup import Speedup, gains


def speed(cells: Sequence[grid.Cell]) -> tuple[Conclusion, ...]:
    """What each mode gains on each subject."""
    said: list[Conclusion] = []
    for mode in dict.fromkeys(cell.mode for cell in cells if cell.mode != grid.EAGER):
        for subject in grid.SUBJECTS:
            wanted = [each for each in cells if each.mode == mode and each.subject == subject]
            if mode.compile == "none":
                pairs = [Speedup(base=each.baseline, candidate=each.measurement) for each in wanted]
                said += gains(pairs, f"{mode.name} {subject}", "fp32 eager")
            else:
                said += gains([each.speedup for each in wanted], f"{mode.name} {subject}", "eager")
    return tuple(said)


def payback(cells: Sequence[grid.Cell]) -> tuple[Conclusion, ...]:
    """After how many train steps each mode has paid for its compilation, by size."""
    return tuple(
        _payback(cell, steps)
        for cell in cells
        if cell.subject == "train_step" and (steps := cell.payback_steps) is not None
    )


def _payback(cell: grid.Cell, steps: float) -> Conclusion:
    assert cell.report is not None
    compiling = evidence("compile time", cell.report.compile_s, "s", cell.measurement)
    if not math.isfinite(steps):
        return say(
            "{mode} never pays back for the train step of {model}: it compiles for {compiling} and is "
            "not faster than eager.",
            mode=cell.mode.name,
            model=cell.shape.name,
            compiling=compiling,
        )
    return say(
        "{mode} pays back after {steps} train steps of {model}, having compiled for {compiling}.",
        mode=cell.mode.name,
        steps=evidence("steps", math.ceil(steps), "count", cell.measurement, cell.eager),
        model=cell.shape.name,
        compiling=compiling,
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
    """Whether padding to one length beats letting it change, for each engine."""
    by_engine: dict[str, dict[str, shapes.Cell]] = {}
    for cell in cells:
        by_engine.setdefault(cell.engine, {})[cell.lengths] = cell
    said = [_pad_or_not(pair) for pair in by_engine.values()]
    return tuple(each for each in said if each is not None)


def _pad_or_not(pair: dict[str, shapes.Cell]) -> Conclusion | None:
    changing, padded = pair["changing"], pair["padded"]
    rates = tokens_per_s(changing.measurement), tokens_per_s(padded.measurement)
    factor = ratio(rates[1], rates[0])
    if factor is None or rates[0] is None or rates[1] is None:
        return None
    return say(
        "Under {engine}, padding to one length runs at {factor} the tokens/s of changing lengths "
        "({padded} against {changing}).",
        engine=changing.engine,
        factor=evidence(
            "padded over changing", factor, "ratio", padded.measurement, changing.measurement
        ),
        padded=evidence("padded", rates[1], "tokens_per_s", padded.measurement),
        changing=evidence("changing", rates[0], "tokens_per_s", changing.measurement),
    )
