"""Study `quantization`: what weights in fewer bits take, what they gain by batch, and what they lose.

A decode step is timed with each kind of weights that a kernel multiplies, at several batches. Then a real
text is read with weights rounded in more ways than these, so that what each way loses stands beside its size.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

from peakward.prediction.parameters import n_parameters
from peakward.prediction.traffic import parameter_bytes, quantised_bytes, quantised_elements
from peakward.records.case import ModelCase, Precision, QualityCase, Source
from peakward.records.model_shape import ModelShape
from peakward.records.study import Conclusion
from peakward.studies import losses, values
from peakward.studies.cases import model_case
from peakward.studies.claims import Sentence, gains
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.expected import EXPECTED, FLOOR, OVER_EXPECTED, SHARE
from peakward.studies.readings import ratio
from peakward.studies.scope import ScopeName
from peakward.studies.setting import Setting
from peakward.studies.values import (
    PEAK,
    REASON,
    STATUS,
    TIME,
    TOKENS_PER_S,
    VERDICT,
    Value,
    plot,
    spread,
    table,
    text,
)

DENSE, INT8, INT4, RECIPE = "dense", "int8", "int4", "int4, int8 cache"
STEPS: dict[str, dict[str, Any]] = {
    DENSE: {},
    INT8: {"weights": "int8"},
    INT4: {"weights": "int4:128"},
    RECIPE: {"weights": "int4:128", "kv_cache": "int8"},
}
"""Steps by what differs from dense weights."""
ON_A_GPU: dict[str, Any] = {
    "cuda_graphs": True,
    "attention": "flash-decode",
    "norm": "fused",
    "rope": "fused",
    "swiglu": "fused",
}
"""The settings that all share there: launched one by one, a step would wait for its host."""
BATCH_SIZES = (1, 4, 16, 64)
SEQ_LENS: dict[ScopeName, tuple[int, ...]] = {
    "small": (64,),
    "corners": (1024,),
    "full": (1024, 4096),
}
TEXT = Source("python-topics")
"""It comes with Python."""
SMOLLM2 = "smollm2"
READ: dict[ScopeName, tuple[int, ...]] = {
    "small": (8, 128, 16, 12),
    "corners": (32, 256, 64, 60),
    "full": (64, 512, 96, 200),
}
"""Rows that are read, their tokens, rows that are seen and steps of fine-tuning: the sizes of
`lab.quality.weights`."""
CALIBRATED, SERVED = "int4, calibrated", "int4, calibrated, int8 cache"
INT8_ACTIVATIONS, SMOOTHED = "int8 activations", "int8 activations, smoothed"
TUNED, TUNED_INT4 = "dense, fine-tuned", "int4, fine-tuned"
WAYS = (
    DENSE,
    INT8,
    INT4,
    CALIBRATED,
    SERVED,
    INT8_ACTIVATIONS,
    SMOOTHED,
    TUNED,
    TUNED_INT4,
)
"""The names in `lab.quality.weights.WAYS`."""
HELD_AGAINST = {TUNED_INT4: TUNED}
"""The model that a way is held against where it is not the dense one: what fine-tuning learns of the text has
nothing to do with rounding."""
BETTER = ((INT4, CALIBRATED), (INT8_ACTIVATIONS, SMOOTHED))
"""A way of rounding, and one that should lose less in the same bytes."""


class Kept(Point[Any], frozen=True, kw_only=True):
    """A decode step, or a text read, with weights of one kind."""

    model: str


Kind = Row[Kept]


def points(setting: Setting) -> Iterator[Kept]:
    """Size × length × batch × kind of weights, held against dense ones; then each way over the text."""
    scope, protocol = setting.scope, setting.protocol(phases=False)
    for shape, n, batch in product(models(setting), lengths(setting), batches(setting)):
        dense = step_case(setting, shape, n, batch, DENSE)
        for name in STEPS:
            case = step_case(setting, shape, n, batch, name)
            if setting.obstacle(case) is None:
                base = (dense, protocol)
                yield Kept(case=case, protocol=protocol, name=name, base=base, model=shape.name)
    for way in WAYS:
        read = QualityCase(
            subject="weights",
            way=way,
            sizes=READ[scope.name],
            text=scope.text or TEXT,
            model=SMOLLM2 if setting.has_smollm2 else None,
            device=setting.device,
        )
        yield Kept(case=read, protocol=protocol, name=way, model=read.model or "trained")


def models(setting: Setting) -> tuple[ModelShape, ...]:
    """The sizes whose steps are timed: on a CPU, whose smaller size is its host's time alone, the larger."""
    return setting.grid.models[-1:] if setting.scope.name == "small" else setting.grid.models


def lengths(setting: Setting) -> tuple[int, ...]:
    """The user's, or the scope's."""
    return setting.scope.seq_lens or SEQ_LENS[setting.scope.name]


def batches(setting: Setting) -> tuple[int, ...]:
    """The user's, or all."""
    one = setting.scope.batch_size
    return BATCH_SIZES if one is None else (one,)


def step_case(setting: Setting, shape: ModelShape, n: int, batch: int, name: str) -> ModelCase:
    """A decode step at n positions."""
    shared = ON_A_GPU if setting.device == "cuda" else {"attention": "sdpa"}
    settings = {"precision": precision(setting), **shared, **STEPS[name]}
    return model_case(shape, batch, n, "decode", setting.device, **settings)


def precision(setting: Setting) -> Precision:
    """The user's first choice, else bf16 on a GPU and fp32 on a CPU."""
    if setting.scope.precisions:
        return setting.scope.precisions[0]
    return "bf16" if setting.device == "cuda" else "fp32"


def steps(view: View[Kept]) -> list[Kind]:
    """The decode steps."""
    return [row for row in view.rows if isinstance(row.case, ModelCase)]


def readings(view: View[Kept]) -> list[Kind]:
    """The texts read."""
    return [row for row in view.rows if isinstance(row.case, QualityCase)]


def by_way(view: View[Kept]) -> dict[str, Kind]:
    """The texts read, by the way of rounding."""
    return {row.name: row for row in readings(view)}


def stored_bytes(row: Kind) -> float:
    """The weights of a step's model as they are stored."""
    case: ModelCase = row.case
    dense = n_parameters(case.model) - quantised_elements(case)
    return dense * parameter_bytes(case) + quantised_bytes(case)


def share_of_dense(row: Kind) -> float | None:
    """The bytes of a step's weights over those of dense ones."""
    return ratio(stored_bytes(row), n_parameters(row.case.model) * parameter_bytes(row.case))


def batch_of(row: Kind) -> int:
    """The sequences of a step."""
    return int(row.case.workload.batch_size)


def place(row: Kind) -> str:
    """For a sentence: "2.7B at 1,024 positions"."""
    return f"{row.point.model} at {row.case.workload.seq_len:,} positions"


def pairs(view: View[Kept]) -> list[tuple[Kind, Kind]]:
    """Each text read, with the model that it is held against."""
    rows = by_way(view)
    return [(row, rows[HELD_AGAINST.get(way, DENSE)]) for way, row in rows.items()]


def more(pair: tuple[Kind, Kind]) -> Any:
    """How much more loss there is than with the other; None of a model with itself."""
    row, base = pair
    return None if row is base else losses.more(row, base)


def speeds(view: View[Kept]) -> Iterator[Conclusion]:
    """Says what each kind of weights gains over dense ones, over all steps and batch by batch."""
    for rows in values.groups(steps(view), lambda row: row.name):
        if rows[0].name != DENSE:
            yield from gains(rows, rows[0].name, "dense weights")
    for rows in values.groups(steps(view), lambda row: (place(row), row.name)):
        ran = [row for row in rows if row.speed is not None]
        if len(ran) > 1 and ran[0].name != DENSE:
            told = Sentence()
            each = [
                told.estimate(f"speed at batch {batch_of(row)}", row.speed, "ratio", *row.both)
                + f" at {batch_of(row)}"
                for row in ran
            ]
            yield from told.end(
                f"{place(ran[0])}, {ran[0].name}: by batch, the speed of dense weights times "
                f"{', '.join(each)}."
            )


def quality(view: View[Kept]) -> Iterator[Conclusion]:
    """Says what each way loses against the model that it is held against, on the same text."""
    for row, base in pairs(view):
        yield from losses.against(base, (row,), kept=losses.weight_bytes)


def won_back(view: View[Kept]) -> Iterator[Conclusion]:
    """Says what calibration, smoothing and fine-tuning win back of what rounding to nearest loses."""
    rows = by_way(view)
    dense = rows[DENSE]
    for plain, better in ((rows[one], rows[other]) for one, other in BETTER):
        found, lost = losses.more(plain, better), losses.more(plain, dense)
        if found is None or lost is None:
            continue
        told, both = Sentence(), (plain.measurement, better.measurement)
        if losses.told_apart(found) == "not told apart":
            by = told.interval("less loss", found, "count", *both)
            yield from told.end(
                f"{better.name} and {plain.name} are not told apart: {by} nats a token less."
            )
            continue
        side, apart = ("less", found) if found.low > 0 else ("more", losses.more(better, plain))
        by = told.interval(f"{side} loss", apart, "count", *both)
        of = told("loss of rounding", lost.estimate, "count", plain.measurement, dense.measurement)
        yield from told.end(
            f"{better.name} has {by} nats a token {side} than {plain.name}, which has {of} more than "
            f"{dense.name}."
        )
    tuned, alone = (
        losses.more(*each) for each in ((rows[TUNED_INT4], rows[TUNED]), (rows[INT4], dense))
    )
    if tuned is not None and alone is not None:
        told = Sentence()
        ours = (rows[TUNED_INT4].measurement, rows[TUNED].measurement)
        without = (rows[INT4].measurement, dense.measurement)
        with_it = told.interval("more loss", tuned, "count", *ours)
        without_it = told.interval("more loss without", alone, "count", *without)
        yield from told.end(
            f"Fine-tuned with its weights rounded, int4 has {with_it} nats a token more than the model that "
            f"was fine-tuned alike and not rounded; rounded without it, {without_it}."
        )


def recipe(view: View[Kept]) -> Iterator[Conclusion]:
    """Says of int4 weights with an int8 cache what they gain at each batch, and what they lose."""
    read = by_way(view)
    lost = losses.more(read[SERVED], read[DENSE])
    both = (read[SERVED].measurement, read[DENSE].measurement)
    ran = [row for row in steps(view) if row.name == RECIPE and row.speed is not None]
    whose = "SmolLM2-135M" if view.setting.has_smollm2 else "The model trained here"
    for rows in values.groups(ran, place):
        told = Sentence()
        first, last = rows[0], rows[-1]
        share = told("bytes", share_of_dense(first), "share", first.measurement)
        at_first, at_last = (
            told.interval(f"speed at {batch_of(row)}", row.speed, "ratio", *row.both)
            for row in (first, last)
        )
        yield from told.end(
            f"int4 weights and an int8 cache take {share} of the bytes of weights in "
            f"{precision(view.setting)}; {place(first)} runs at {at_first} of its speed at a batch of "
            f"{batch_of(first)} and at {at_last} at {batch_of(last)}. {whose} loses "
            f"{told.interval('more loss', lost, 'count', *both)} nats a token by them, calibrated."
        )


def notes(view: View[Kept]) -> tuple[str, ...]:
    """Conventions and limits."""
    setting = view.setting
    rows, length, seen, n_steps = READ[setting.scope.name]
    whose = (
        "SmolLM2-135M, whose file has its weights in 4 bits already (Q4_1, in groups of 32, with an offset), "
        "so that dense is rounded once and every other way twice,"
        if setting.has_smollm2
        else "A small decoder of bytes, trained here from one seed for every way,"
    )
    planned = (
        step_case(setting, shape, n, batch, name)
        for shape, n, batch, name in product(
            models(setting), lengths(setting), batches(setting), STEPS
        )
    )
    return (
        f"Steps in {precision(setting)} on random weights. int8 has a scale for each output, int4 one for "
        "128 inputs; of the model that reads for 64, which divides its widths. Embeddings, head and norms "
        "are not rounded.",
        f"{whose} reads {rows} stretches of {length:,} tokens. Calibration (GPTQ), smoothing (SmoothQuant) "
        f"and {n_steps} steps of fine-tuning see {seen} others of the same text.",
        "Calibrated and fine-tuned int4 has the form of int4, and with it the speed. No kernel here "
        "multiplies int8 activations: their loss is told, and not their speed.",
        *setting.refusals(planned),
    )


BATCH = Value("sequences", "count", batch_of)
WEIGHTS = Value("weights", "bytes", stored_bytes)
STUDY = Study(
    title="What do weights in fewer bits gain in size and speed, and lose on real text?",
    points=points,
    needs_ceilings=True,
    tables=(
        table(
            lambda row: f"A decode step of {row.point.model}",
            (
                Value("positions", "count", lambda row: row.case.workload.seq_len),
                BATCH,
                text("kind", lambda row: row.name),
                STATUS,
                WEIGHTS,
                Value("of dense", "share", share_of_dense),
                FLOOR,
                EXPECTED,
                TIME,
                OVER_EXPECTED,
                TOKENS_PER_S,
                SHARE,
                spread("speed over dense", lambda row: row.speed, "ratio"),
                PEAK,
                VERDICT,
                REASON,
            ),
            steps,
            each=lambda row: row.point.model,
        ),
        table(
            "A text read",
            (
                text("weights", lambda pair: pair[0].name),
                text("status", lambda pair: pair[0].status),
                Value("stored", "bytes", lambda pair: losses.weight_bytes(pair[0])),
                Value("nats a token", "count", lambda pair: losses.mean(pair[0])),
                Value("perplexity", "count", lambda pair: losses.perplexity(pair[0])),
                text("held against", lambda pair: pair[1].name),
                spread("more loss", more, "count"),
                text("difference", lambda pair: losses.told_apart(more(pair))),
                text("reason", lambda pair: pair[0].reason),
            ),
            pairs,
            note="More loss than the model that it is held against, on the same stretches in pairs, with a "
            "t-interval at 95%. Bytes are those of all weights, what is not rounded in 16 bits.",
        ),
    ),
    plots=(
        plot(
            lambda row: f"Speed over dense weights, {place(row)}",
            BATCH,
            Value("speed over dense", "ratio", lambda row: row.speed),
            lambda row: row.name,
            steps,
            each=place,
            log="x",
        ),
        plot(
            "Loss by the bytes of the weights",
            Value("stored", "bytes", losses.weight_bytes),
            Value("nats a token", "count", losses.mean),
            lambda row: row.name,
            readings,
        ),
    ),
    claims=(quality, won_back, speeds, recipe),
    notes=notes,
)
