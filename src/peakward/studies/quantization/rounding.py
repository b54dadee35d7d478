"""The ways of rounding weights whose loss is told: a real text read with each, and held against another."""

from collections.abc import Iterator
from typing import Any

from peakward.records.case import QualityCase, Source
from peakward.records.study import Conclusion
from peakward.studies import losses
from peakward.studies.claims import Sentence
from peakward.studies.engine import Point, Row, View
from peakward.studies.scope import ScopeName
from peakward.studies.setting import Setting
from peakward.studies.values import Value, plot, spread, table, text

DENSE, INT8, INT4 = "dense", "int8", "int4"
INT8_TORCHAO, INT4_TORCHAO = "int8, torchao", "int4, torchao"
NEEDS_TORCHAO = "needs torchao: pip install 'peakward[quant]'"
INT8_ACTIVATIONS, SMOOTHED = "int8 activations", "int8 activations, smoothed"
TEXT = Source("python-topics")
"""It comes with Python."""
SMOLLM2 = "smollm2"
READ: dict[ScopeName, tuple[int, ...]] = {
    "small": (16, 128, 16, 12),
    "corners": (32, 256, 64, 60),
    "full": (64, 512, 96, 200),
}
"""Rows that are read, their tokens, rows that are seen and steps of fine-tuning: the sizes of
`lab.quality.weights`."""
CALIBRATED, SERVED = "int4, calibrated", "int4, calibrated, int8 cache"
TUNED, TUNED_INT4 = "dense, fine-tuned", "int4, fine-tuned"
WAYS = (
    DENSE,
    INT8,
    INT4,
    CALIBRATED,
    SERVED,
    INT8_TORCHAO,
    INT4_TORCHAO,
    INT8_ACTIVATIONS,
    SMOOTHED,
    TUNED,
    TUNED_INT4,
)
"""The names in `lab.quality.weights.WAYS`."""
HELD_AGAINST = {TUNED_INT4: TUNED}
"""The model that a way is held against where it is not the dense one: what fine-tuning learns of the text has
nothing to do with rounding."""
OF_TORCHAO = (INT8_TORCHAO, INT4_TORCHAO)
BETTER = ((INT4, CALIBRATED), (INT4_TORCHAO, CALIBRATED), (INT8_ACTIVATIONS, SMOOTHED))
"""A way of rounding, and one that should lose less in as many bytes or fewer."""


class Kept(Point[Any], frozen=True, kw_only=True):
    """A decode step, one product, or a text read, with weights of one kind."""

    model: str


Kind = Row[Kept]


def points(setting: Setting) -> Iterator[Kept]:
    """Each way over the text: by SmolLM2 where it is installed, else by a model trained here."""
    scope = setting.scope
    for way in WAYS:
        read = QualityCase(
            subject="weights",
            way=way,
            sizes=READ[scope.name],
            text=scope.text or TEXT,
            model=SMOLLM2 if setting.has_smollm2 else None,
            device=setting.device,
        )
        yield Kept(
            case=read,
            protocol=setting.protocol(phases=False),
            name=way,
            model=read.model or "trained",
            absent=NEEDS_TORCHAO if way in OF_TORCHAO and not setting.has_torchao else None,
        )


def readings(view: View[Kept]) -> list[Kind]:
    """The texts read."""
    return [row for row in view.rows if isinstance(row.case, QualityCase)]


def by_way(view: View[Kept]) -> dict[str, Kind]:
    """The texts read, by the way of rounding."""
    return {row.name: row for row in readings(view)}


def pairs(view: View[Kept]) -> list[tuple[Kind, Kind]]:
    """Each text read, with the model that it is held against."""
    rows = by_way(view)
    return [(row, rows[HELD_AGAINST.get(way, DENSE)]) for way, row in rows.items()]


def more(pair: tuple[Kind, Kind]) -> Any:
    """How much more loss there is than with the other; None of a model with itself."""
    row, base = pair
    return None if row is base else losses.more(row, base)


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
        in_all = losses.by_how_much(told, rows[TUNED_INT4], dense)
        yield from told.end(
            f"Fine-tuned with its weights rounded, int4 has {with_it} nats a token more than the model that "
            f"was fine-tuned alike and not rounded; rounded without it, {without_it}. Beside the model as it "
            f"was before both it has {in_all}."
        )


TABLE = table(
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
)
PLOT = plot(
    "Loss by the bytes of the weights",
    Value("stored", "bytes", losses.weight_bytes),
    Value("nats a token", "count", losses.mean),
    lambda row: row.name,
    readings,
)
