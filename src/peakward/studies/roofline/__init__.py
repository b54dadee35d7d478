"""Study `roofline`: every operator of a training step on this device's roofline, measured beside predicted.

The place of an operator is computed, from the closed form of the step's operators; how fast it ran is
read off a profile; the roof is that of the calibration.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from peakward.hardware import devices
from peakward.records.calibration import Subject
from peakward.records.measurement import Interval
from peakward.records.study import Cell, Conclusion, Plot, Series
from peakward.report.format import format_cell
from peakward.studies.claims import Sentence, Source, changed, known, least, listed, most
from peakward.studies.engine import Study
from peakward.studies.readings import ratio
from peakward.studies.roofline.places import ELEMENTWISE, Place
from peakward.studies.roofline.steps import (
    EAGER,
    Placed,
    Seen,
    by_batch,
    largest,
    placed,
    points,
    profiled,
    steps,
    wanted,
)
from peakward.studies.values import STATUS, VERDICT, Value, given, groups, label, mark, table, text
from peakward.tune.profiles import N_STEPS

MODELLED: tuple[Subject, ...] = ("products", "traffic", "launches", "attention")
"""The subjects of a full calibration that predictions are made from."""


class Kind(NamedTuple):
    """A kind of operators of a step."""

    step: Placed
    place: Place


def roofs(view: Seen) -> Iterable[Placed]:
    """A step of each precision."""
    return {each.point.precision: each for each in steps(view) if each.on is not None}.values()


def operators(view: Seen) -> Iterator[Kind]:
    """The places at the largest batch of each precision and fusion."""
    return (Kind(step, place) for step in largest(view) for place in step.places)


def growing(view: Seen) -> Iterator[Kind]:
    """The notable kinds of the largest batch, at each batch of those that have several."""
    for group in by_batch(view):
        for each in group[-1].notable if len(group) > 1 else ():
            for step in group:
                if (place := step.place_of(each.kind)) is not None:
                    yield Kind(step, place)


def rooflines(view: Seen) -> Iterator[Plot]:
    """The operators of one step each, under the roof of its precision, at the largest batch."""
    for step in largest(view):
        # What computes nothing has no place on logarithmic axes; the table has all.
        marks = [
            Series(name=each.kind, points=(mark(each.intensity, each.rate, each.kind),))
            for each in step.notable
            if each.rate
        ]
        if step.ridge is None or step.on is None or not marks:
            continue
        xs = [step.ridge, *(each.points[0].x for each in marks)]
        ends, bandwidth = (min(xs) / 4, step.ridge, max(xs) * 4), step.on.bytes_per_s
        roof = Series(
            name=f"{step.point.precision} roof",
            points=tuple(mark(x, min(x, step.ridge) * bandwidth) for x in ends),
        )
        yield Plot(
            title=f"Roofline: {step.name}",
            kind="roofline",
            x_label="intensity (operations/byte)",
            y_label="operations/s",
            x_unit="count",
            y_unit="flops_per_s",
            log_x=True,
            log_y=True,
            series=(roof, *marks),
        )


def sides(view: Seen) -> Iterator[Conclusion]:
    """The share of the time that is bound by what, and how near the whole is to the roof."""
    for step in largest(view):
        told, sources = Sentence(), (step.profile, step.calibration)
        right, near = ratio(step.right_s, step.placed_s), ratio(step.floor_s, step.placed_s)
        yield from told.end(
            f"In {step.name}, {told('share right of the ridge', right, 'share', *sources)} of the "
            f"operators' time is right of the ridge at {told('ridge', step.ridge, 'count', *sources)} "
            f"operations/byte{_named(step, 'compute')}, the rest left of it{_named(step, 'memory')}; their "
            f"least times sum to {told('share of the roof', near, 'share', *sources)} of what they took."
        )


def _named(step: Placed, bound: Literal["compute", "memory"]) -> str:
    names = [each.kind for each in step.places if each.bound == bound and each.measured_s]
    return f" ({', '.join(names)})" if names else ""


def farthest(view: Seen) -> Iterator[Conclusion]:
    """The kind that would give most time back at the roof."""
    for step in largest(view):
        lost = [(each.lost_s, each) for each in step.places if each.lost_s > 0]
        if lost:
            told, (lost_s, place) = Sentence(), most(lost)
            name = f"the layer {place.kind}" if place.is_layer else place.kind
            above = f"time of {place.kind} above the roof"
            yield from told.end(
                f"Most is lost in {step.name} by {name}: {roof_share(told, step, place)} of the roof, "
                f"{told(above, lost_s, 's', step.profile, step.calibration)} a step above it."
            )


def precisions(view: Seen) -> Iterator[Conclusion]:
    """Says what the other precisions do to the ridge and to the longest layer, beside the first."""
    alike = groups(largest(view), lambda each: (each.point.case.model.name, each.point.fusion))
    for base, *others in alike:
        for other in others:
            layer, (model, first, fusion) = base.longest_layer, base.point.settings
            if base.point.batch_size != other.point.batch_size or layer is None:
                continue
            passed = [
                f"{each.kind} ({each.bound} to {now.bound})"
                for each in base.places
                if (now := other.place_of(each.kind)) is not None and each.bound != now.bound
            ]
            subject = (
                f"From {first} to {other.point.precision} ({model}, {fusion}, batch "
                f"{base.point.batch_size}) the ridge passes {', '.join(passed) or 'no operator'}"
            )
            figures = (RIDGE, of_kind(INTENSITY, layer.kind), of_kind(ROOF_SHARE, layer.kind))
            yield from changed(subject, figures, base, other, *both(base, other))


def batches(view: Seen) -> Iterator[Conclusion]:
    """Says what the largest batch does to the places, beside the smallest."""
    for few, *_, many in (each for each in by_batch(view) if len(each) > 1):
        if (layer := many.longest_layer) is not None:
            subject = f"From batch {few.point.batch_size} to {many.point.batch_size}"
            figures = (
                of_kind(INTENSITY, layer.kind),
                of_kind(ROOF_SHARE, layer.kind),
                of_kind(INTENSITY, ELEMENTWISE),
            )
            where = f"{subject} ({', '.join(many.point.settings)})"
            yield from changed(where, figures, few, many, *both(few, many))


def fusions(view: Seen) -> Iterator[Conclusion]:
    """Says what each fusion saves in bytes and time, beside eager at the same batch."""
    for rows in groups(
        largest(view), lambda each: (*each.point.settings[:2], each.point.batch_size)
    ):
        eager = [each for each in rows if each.point.fusion == EAGER]
        for step in rows:
            for base in eager if step.point.fusion != EAGER else ():
                rest = ratio(step.rest_bytes, base.rest_bytes), ratio(step.rest_s, base.rest_s)
                figures = (
                    given("bytes", "bytes", step.n_bytes),
                    given("eager's bytes", "bytes", base.n_bytes),
                    given("bytes but of linear layers, over eager's", "share", rest[0]),
                    given("their time, over eager's", "share", rest[1]),
                )
                yield from listed(f"{step.name} against eager", figures, step, *both(base, step))


def both(first: Placed, second: Placed) -> tuple[Source | None, ...]:
    """Returns the records that the figures of two steps are computed from."""
    return first.profile, second.profile, first.calibration


def of_kind(value: Value, kind: str) -> Value:
    """A value of the place that a step has for a kind of operators."""

    def get(step: Placed) -> Cell | Interval:
        place = step.place_of(kind)
        return None if place is None else value.get(Kind(step, place))

    named = kind if kind == ELEMENTWISE else f"the layer {kind}"
    return Value(f"{value.name} of {named}", value.unit, get)


def predictions(view: Seen) -> Iterator[Conclusion]:
    """How far off the predicted times of the operators are, over all steps."""
    kinds = [Kind(step, place) for step in profiled(view) for place in step.places]
    judged = known(kinds, lambda each: each.place.over_predicted)
    if not judged:
        return
    told, sources = Sentence(), [each.step.profile for _, each in judged]
    measured_s = sum(each.place.measured_s or 0.0 for _, each in judged)
    predicted_s = sum(each.place.predicted_s or 0.0 for _, each in judged)
    n = told("places with a prediction", len(judged), "count", *sources, view.calibration)
    whole = measured_s / predicted_s
    said = told("measured over predicted", whole, "ratio", *sources, view.calibration)

    def end(quantity: str, found: tuple[float, Kind]) -> str:
        over, (step, place) = found
        figure = told(f"{quantity} over predicted", over, "ratio", step.profile, view.calibration)
        return f"{figure} ({place.kind}; {step.name})"

    yield from told.end(
        f"Over {n} places the operators took {said} of their predicted time in sum, from "
        f"{end('least', least(judged))} to {end('most', most(judged))}."
    )


def roof_share(told: Sentence, step: Placed, place: Place) -> str:
    """A place's share of the roof."""
    quantity = f"share of the roof of {place.kind}, {step.name}"
    return told(quantity, place.roof_share, "share", step.profile, step.calibration)


def notes(view: Seen) -> Iterator[str]:
    """Yields notes on what is counted, what was left out, and why a share may be over 100%."""
    yield (
        "Operations: of products 2·m·n·k, of fused attention half of it under the causal mask and no "
        "recomputation; of all else one for each element of the largest operand and step of its "
        "formula, in a fused kernel once for each operator that it names. Bytes: operands, each moved "
        "once. Both are computed; forward and backward pass together."
    )
    yield (
        "The roof is this device's measured square matmul rate in the compute type and its copy "
        f"bandwidth; times are of kernels over {N_STEPS} profiled steps."
    )
    if not view.on_gpu:
        yield (
            "On a CPU the times are the self times of operators on the host, calling them included; "
            "norms are written out there and count as elementwise. No time is predicted for a CPU."
        )
    yield from over_roof(view)
    if not view.on_gpu:
        yield (
            "Not run: compiled steps, as what a compiler fuses on a CPU is not stated in closed form."
        )
    yield from view.setting.refusals(each.case for each in wanted(view.setting))
    reasons = (each.stated for each in steps(view) if isinstance(each.stated, str))
    yield from dict.fromkeys(f"Without places: {each}." for each in reasons)


def over_roof(view: Seen) -> Iterator[str]:
    """A note for each cause that some place over its roof has, naming the kinds."""
    where = view.setting.environment
    device = devices.match(where.device_name, where.device_memory_bytes)
    l2_bytes = device.l2_bytes.value if device is not None and device.l2_bytes is not None else None
    above = [
        each for step in profiled(view) for each in step.places if (each.roof_share or 0.0) > 1
    ]
    for rows in groups(above, lambda each: cause(each, l2_bytes)):
        kinds = ", ".join(dict.fromkeys(each.kind for each in rows))
        yield f"A share over 100% ({kinds}): {cause(rows[0], l2_bytes)}."


def cause(place: Place, l2_bytes: float | None) -> str:
    """Why a place may be over its roof; none is claimed where it cannot be."""
    if place.bound == "compute":
        return "products ran faster than the square one of the calibration"
    if l2_bytes is None:
        return "memory's bandwidth does not bound what is found in a cache, whose size is not known"
    if place.bytes > l2_bytes * place.n_calls:
        return "what a call moves is more than the L2 holds; the cause is not known"
    return (
        f"what a call moves fits into the L2 of {format_cell(l2_bytes, 'bytes')}, where it may be "
        "found; memory's bandwidth does not bound that"
    )


PRECISION = text("precision", lambda row: row.point.precision)
SETTINGS = (
    text("model", lambda row: row.point.case.model.name),
    PRECISION,
    text("fusion", lambda row: row.point.fusion),
)
STEP = (*SETTINGS, Value("batch", "count", lambda row: row.point.batch_size))
MEDIAN = Value("step", "s", lambda row: row.median_s)
OPERATORS = label("operators", lambda row: row.place.kind)
INTENSITY = Value("operations/byte", "count", lambda row: row.place.intensity)
RIDGE = Value("ridge (operations/byte)", "count", lambda row: row.ridge)
BOUND = text("bound", lambda row: row.place.bound)
TIME_SHARE = Value(
    "share of time", "share", lambda row: ratio(row.place.measured_s, row.step.work_s)
)
ROOF_SHARE = Value("share of the roof", "share", lambda row: row.place.roof_share)


def of_step(value: Value) -> Value:
    """A step's value, read off one of its kinds."""
    return Value(value.name, value.unit, lambda row: value.get(row.step))


STUDY = Study(
    title="How near to this device's roof is each operator, and what moves it there?",
    points=points,
    # A GPU's times are predicted too.
    needs_rates=lambda setting: MODELLED if setting.device == "cuda" else (),
    needs_ceilings=True,
    rows=placed,
    tables=(
        table(
            "Roofs",
            (
                PRECISION,
                Value("matmuls", "flops_per_s", lambda row: row.on.matmul_flops_per_s),
                Value("bandwidth", "bytes_per_s", lambda row: row.on.bytes_per_s),
                RIDGE,
                text("source", lambda row: row.on.source),
            ),
            roofs,
        ),
        table(
            "Steps, and the sum of their operators under the roof",
            (
                *STEP,
                STATUS,
                MEDIAN,
                Value("in operators", "s", lambda row: row.work_s),
                Value("of it placed", "share", lambda row: ratio(row.placed_s, row.work_s)),
                Value("least under the roof", "s", lambda row: row.floor_s),
                Value("share of the roof", "share", lambda row: ratio(row.floor_s, row.placed_s)),
                Value("right of the ridge", "share", lambda row: ratio(row.right_s, row.placed_s)),
                VERDICT,
            ),
            note="The step is by the plain timer, the time in operators from the profile; the share of the "
            "roof is of what is placed. Not placed: calls that the closed form does not have, views and "
            "autograd's own on a host, and the driver's where it names none.",
        ),
        table(
            lambda row: f"{row.step.name}: its operators",
            (
                OPERATORS,
                Value("calls", "count", lambda row: row.place.n_calls),
                Value("operations", "flops", lambda row: row.place.operations),
                Value("bytes", "bytes", lambda row: row.place.bytes),
                INTENSITY,
                BOUND,
                Value("measured", "s", lambda row: row.place.measured_s),
                TIME_SHARE,
                Value("operations/s", "flops_per_s", lambda row: row.place.rate),
                ROOF_SHARE,
                Value("predicted", "s", lambda row: row.place.predicted_s),
                Value("measured over predicted", "ratio", lambda row: row.place.over_predicted),
            ),
            operators,
            each=lambda row: row.step.name,
            note="A step's; calls are the closed form's. Bound: the side of the ridge. Predicted times are "
            "from one launch to the next, measured ones of the kernels alone.",
        ),
        table(
            "Operators by batch",
            (
                *map(of_step, SETTINGS),
                OPERATORS,
                of_step(STEP[-1]),
                INTENSITY,
                BOUND,
                ROOF_SHARE,
                TIME_SHARE,
            ),
            growing,
            note="Of the kinds that take a hundredth of the time or more at the largest batch.",
        ),
        table(
            "What fusion moves",
            (
                *STEP,
                Value(
                    "operators a step",
                    "count",
                    lambda row: sum(each.n_calls for each in row.places),
                ),
                Value("bytes", "bytes", lambda row: row.n_bytes),
                Value("bytes but of linear layers", "bytes", lambda row: row.rest_bytes),
                Value("their time", "s", lambda row: row.rest_s),
                MEDIAN,
            ),
            lambda view: (each for each in steps(view) if each.places),
            note="Bytes are computed from the operators' shapes. Linear layers move the same however much "
            "around them is fused.",
        ),
    ),
    plots=(rooflines,),
    claims=(sides, farthest, precisions, batches, fusions, predictions),
    notes=notes,
)
