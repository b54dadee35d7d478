"""The short training run of a composition: losses, gradients and activations by layer beside fp64's.

How far a norm is off is |norm / fp64's − 1|. One number a layer is the mean over the later half of the steps,
where what each step errs by on its own averages out.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import isfinite
from statistics import fmean
from typing import NamedTuple

from peakward.records.lever import MAGNITUDES_LOG2, TrainingCourse, TrainingRun
from peakward.records.study import Column, Plot, Point, Series, Study, Table
from peakward.report.columns import without_empty
from peakward.report.document import Block, Paragraph, PlotBlock, TableBlock
from peakward.report.format import format_cell
from peakward.report.plots import drawable

Norms = tuple[tuple[float | None, ...], ...]
Quantity = Callable[[TrainingCourse], Norms]
"""Norms of a course by step and layer."""


def _gradients(course: TrainingCourse) -> Norms:
    return course.gradient_norms


def _outputs(course: TrainingCourse) -> Norms:
    return course.output_norms


QUANTITIES: dict[str, Quantity] = {"gradient": _gradients, "output": _outputs}


class _Drawn(NamedTuple):
    """A run with the name of what was tried in it."""

    run: TrainingRun
    lever: str

    @property
    def arms(self) -> tuple[tuple[str, TrainingCourse], ...]:
        return ("without", self.run.base), ("with", self.run.candidate)

    def off(self, of: Quantity, course: TrainingCourse, layer: int) -> list[float | None]:
        """How far the layer's norm is off fp64's, by step; None where either is not finite, or their
        ratio is not."""
        pairs = zip(of(course), of(self.run.oracle), strict=True)
        return [_apart(mine[layer], theirs[layer]) for mine, theirs in pairs]

    def late(self, of: Quantity, course: TrainingCourse, layer: int) -> float | None:
        """The mean of `off` over the later half; None where a norm of the course is not finite there."""
        found = self.off(of, course, layer)
        half = len(found) // 2
        if any(norms[layer] is None for norms in of(course)[half:]):
            return None
        known = [each for each in found[half:] if each is not None]
        return fmean(known) if known else None


def training_blocks(study: Study) -> tuple[Block, ...]:
    """The run of what was tried with the most levers, the last of these; empty where none was made."""
    trained = [each for each in study.trials if each.numerics and each.numerics.training]
    if not trained:
        return ()
    trial = max(enumerate(trained), key=lambda pair: (len(pair[1].levers), pair[0]))[1]
    assert trial.numerics is not None
    run = trial.numerics.training
    assert run is not None
    drawn = _Drawn(run, trial.lever)
    plots = [_losses(drawn), _drift(drawn, "gradient")]
    if run.n_repeated:
        plots += [_drift(drawn, "output"), _magnitudes(drawn)]
    return (
        Paragraph(text=sentence(drawn)),
        TableBlock(table=_table(drawn)),
        *(PlotBlock(plot=each) for each in drawable(plots)),
    )


def sentence(drawn: _Drawn) -> str:
    """Says first what is not finite; names the layer that drifts most, and says why outputs are missing where
    they are."""
    run, candidate = drawn.run, drawn.run.candidate
    found = [
        (late, layer, name)
        for name, of in QUANTITIES.items()
        for layer in range(_n_layers(run, name))
        if (late := drawn.late(of, candidate, layer)) is not None
    ]
    texts = list(_not_finite(drawn))
    if found:
        most, layer, name = max(found)
        base = drawn.late(QUANTITIES[name], run.base, layer)
        without = "" if base is None else f", {format_cell(base, 'count')} without"
        among = "Of what stays finite over" if texts else "Over"
        texts.append(
            f"{among} the later half of {len(run.oracle.losses)} steps of training {_called(run, layer)} "
            f"drifts most: the norm of its {name} is off fp64's by {format_cell(most, 'count')} of it with "
            f"{drawn.lever}{without}."
        )
    if not run.n_repeated:
        texts.append(
            "Outputs by layer are not computed: the module repeats no layers that it calls one by one."
        )
    return " ".join(texts)


def _not_finite(drawn: _Drawn) -> Iterator[str]:
    """A sentence on the first value of each course that is not finite."""
    candidate, base = drawn.run.candidate, drawn.run.base
    courses = (
        (f"with {drawn.lever}", candidate),
        (f"without {drawn.lever}", base),
        ("in fp64", drawn.run.oracle),
    )
    for how, course in courses:
        values: dict[str, Sequence[float | None]] = {"loss": course.losses}
        for name, of in QUANTITIES.items():
            for layer in range(_n_layers(drawn.run, name)):
                called = f"norm of the {name} of {_called(drawn.run, layer)}"
                values[called] = [norms[layer] for norms in of(course)]
        bad = {called: each.index(None) for called, each in values.items() if None in each}
        if bad:
            first = min(bad, key=lambda called: bad[called])
            word = "at" if values[first][-1] is not None else "from"
            yield f"The {first} is not finite {word} step {bad[first] + 1} {how}."


def _called(run: TrainingRun, layer: int) -> str:
    return "what is in no layer" if run.layers[layer] == "others" else run.layers[layer]


def _n_layers(run: TrainingRun, name: str) -> int:
    """The layers whose norms are known: what lies outside repeated ones has no one output."""
    return run.n_repeated if name == "output" else len(run.layers)


def _apart(mine: float | None, theirs: float | None) -> float | None:
    if mine is None or not theirs:
        return None
    ratio = mine / theirs
    return abs(ratio - 1) if isfinite(ratio) else None


def _table(drawn: _Drawn) -> Table:
    run = drawn.run
    columns = [Column(name="layer")]
    for name in QUANTITIES:
        columns += [
            Column(name=f"{name}'s norm, fp64", unit="count"),
            *(Column(name=f"{name} off {arm}", unit="count") for arm, _ in drawn.arms),
        ]
    rows = []
    for layer, called in enumerate(run.layers):
        row: list[str | float | None] = [called]
        for name, of in QUANTITIES.items():
            known = layer < _n_layers(run, name)
            row.append(of(run.oracle)[-1][layer] if known else None)
            row += [drawn.late(of, arm, layer) if known else None for _, arm in drawn.arms]
        rows.append(tuple(row))
    table = Table(
        title=f"Layers of a training run, without and with {drawn.lever}",
        columns=tuple(columns),
        rows=tuple(rows),
        note="Norms are those of the last step. Off: |norm / fp64's − 1|, the mean over the later half of "
        "the steps. Outputs are of a forward pass after each update, launched operator by operator.",
    )
    return without_empty(table)


def _losses(drawn: _Drawn) -> Plot:
    oracle = drawn.run.oracle.losses
    first, last = (format_cell(oracle[at], "count") for at in (0, -1))
    return Plot(
        title=f"How far losses of a training run are off fp64's, which go from {first} to {last}",
        kind="lines",
        x_label="step",
        y_label="error of the loss",
        x_unit="count",
        y_unit="count",
        series=tuple(
            Series(name=name, points=_points(list(map(_apart, course.losses, oracle))))
            for name, course in (
                ("without", drawn.run.base),
                (f"with {drawn.lever}", drawn.run.candidate),
            )
        ),
    )


def _drift(drawn: _Drawn, name: str) -> Plot:
    """How far norms are off, a row for each layer and arm."""
    return Plot(
        title=f"How far the norm of each layer's {name} is off fp64's, without and with {drawn.lever}",
        kind="heat",
        x_label="step",
        y_label="off by",
        x_unit="count",
        y_unit="count",
        log_y=True,
        series=tuple(
            Series(
                name=f"{drawn.run.layers[layer]}, {arm}",
                points=_points(drawn.off(QUANTITIES[name], course, layer)),
            )
            for layer, (arm, course) in product(range(_n_layers(drawn.run, name)), drawn.arms)
        ),
    )


def _points(values: Sequence[float | None]) -> tuple[Point, ...]:
    """Those that are known, by step."""
    return tuple(Point(x=at, y=y) for at, y in enumerate(values, 1) if y is not None)


def _magnitudes(drawn: _Drawn) -> Plot:
    """How large outputs are: of the candidate at each look, of the others at the last."""
    run = drawn.run
    *arms, (tried, _) = drawn.arms
    rows = [(f"fp64, step {run.looks[-1]}", run.oracle, -1)]
    rows += [(f"{arm}, step {run.looks[-1]}", course, -1) for arm, course in arms]
    rows += [(f"{tried}, step {step}", run.candidate, at) for at, step in enumerate(run.looks)]
    return Plot(
        title=f"Magnitudes of each layer's output, without and with {drawn.lever}",
        kind="heat",
        x_label="powers of two",
        y_label="share of elements",
        x_unit="count",
        y_unit="share",
        series=tuple(
            Series(
                name=f"{run.layers[layer]}, {name}",
                points=tuple(
                    Point(x=at, y=n / 1000, label=label)
                    for at, (label, n) in enumerate(
                        zip(BINS, course.magnitudes[look][layer], strict=True)
                    )
                ),
            )
            for layer, (name, course, look) in product(range(run.n_repeated), rows)
        ),
    )


_EDGES = tuple(format_cell(each, "count") for each in MAGNITUDES_LOG2)
BINS = (f"<{_EDGES[0]}", *_EDGES)
"""The bins of magnitudes by the power of two that each begins with."""
