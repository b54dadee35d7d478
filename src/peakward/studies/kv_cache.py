"""Study `kv-cache`: what keys and values take in memory and time, and what it loses to keep less of them.

A decode step is timed with heads of its own for each query, with groups and with one, and with a cache in
fewer bits or of a window. Then a real text is read token by token through each kind of cache, so that the
loss of those that keep less stands beside the bytes they keep.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import msgspec

from peakward.prediction.parameters import n_parameters
from peakward.prediction.traffic import cached_bytes, parameter_bytes
from peakward.records.case import ModelCase, QualityCase, Source
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

MHA, GQA, MQA = "MHA", "GQA", "MQA"
WINDOW = "MHA, window"
NARROW: dict[str, dict[str, Any]] = {
    "MHA, flash-decode": {"attention": "flash-decode"},
    "MHA, int8": {"kv_cache": "int8", "attention": "flash-decode"},
    "MHA, fp8": {"kv_cache": "fp8", "attention": "flash-decode"},
}
"""The same heads in fewer bytes, and Peakward's kernel that reads them beside it on the same bytes as MHA."""
GROUP = 4
"""Queries that share a key in GQA, where there are more than so many heads."""
PART = 4
"""A window is this part of the length."""
SEQ_LENS = {"small": (256, 1024), "corners": (1024, 8192), "full": (512, 2048, 8192, 32768)}
BATCH_SIZES = {"small": (1, 4), "corners": (1, 16), "full": (1, 8, 64)}
TEXT = Source("python-topics")
"""It comes with Python."""
SMOLLM2 = "smollm2"
READ: dict[ScopeName, tuple[int, ...]] = {
    "small": (8, 64, 64, 32),
    "corners": (16, 256, 128, 96),
    "full": (32, 1024, 256, 256),
}
"""Sequences, tokens of a prompt and behind it, and tokens that caches of a part keep: the sizes of
`lab.quality.caches`."""
CONTIGUOUS = "contiguous"
CACHES = (
    CONTIGUOUS,
    "paged",
    "int8",
    "fp8",
    "int4",
    "window",
    "sinks",
    "global",
    "heavy hitters",
    "int8, int4:64 weights",
)
"""The names in `lab.quality.caches.WAYS`."""


class Kept(Point[Any], frozen=True, kw_only=True):
    """A decode step, or a text read, with one kind of cache."""

    model: str


Kind = Row[Kept]


def points(setting: Setting) -> Iterator[Kept]:
    """Size × length × batch × kind of heads and of cache, held against MHA; then each cache over the text."""
    scope, protocol = setting.scope, setting.protocol(phases=False)
    lengths = scope.seq_lens or SEQ_LENS[scope.name]
    batches = BATCH_SIZES[scope.name] if scope.batch_size is None else (scope.batch_size,)
    # A CPU's step of the smaller size is its host's time alone.
    models = setting.grid.models[-1:] if scope.name == "small" else setting.grid.models
    for shape, n, batch in product(models, lengths, batches):
        for name, case in steps_of(setting, shape, n, batch).items():
            if setting.obstacle(case) is None:
                base = (step_case(setting, heads(shape, MHA), n, batch), protocol)
                yield Kept(case=case, protocol=protocol, name=name, base=base, model=shape.name)
    for way in CACHES:
        read = reading(setting, way)
        yield Kept(case=read, protocol=protocol, name=way, model=read.model or "trained")


def steps_of(setting: Setting, shape: ModelShape, n: int, batch: int) -> dict[str, ModelCase]:
    """The steps that are compared, by name: those of heads, of fewer bytes and of a window."""
    many = heads(shape, MHA)
    window = msgspec.structs.replace(many, name=f"{shape.name}-window", window=max(1, n // PART))
    found = {kind: step_case(setting, heads(shape, kind), n, batch) for kind in (MHA, GQA, MQA)}
    if setting.device == "cuda":
        found |= {name: step_case(setting, many, n, batch, **by) for name, by in NARROW.items()}
    return found | {WINDOW: step_case(setting, window, n, batch)}


def step_case(setting: Setting, shape: ModelShape, n: int, batch: int, **levers: Any) -> ModelCase:
    """A decode step at n positions, on a GPU as one graph: its host would hide what a cache is worth."""
    settings = {
        "precision": setting.precision(on_gpu="bf16"),
        "attention": "sdpa",
        "cuda_graphs": setting.device == "cuda",
    } | levers
    return model_case(shape, batch, n, "decode", setting.device, **settings)


def heads(shape: ModelShape, kind: str) -> ModelShape:
    """The shape with as many heads of keys as the kind has, by another name unless it has them already."""
    n = shape.n_heads
    shared = GROUP if n > GROUP else 2
    fewer = max(each for each in range(1, max(1, n // shared) + 1) if n % each == 0)
    count = {MHA: n, GQA: fewer, MQA: 1}[kind]
    if count == shape.n_kv_heads:
        return shape
    return msgspec.structs.replace(shape, name=f"{shape.name}-{kind.lower()}", n_kv_heads=count)


def reading(setting: Setting, way: str) -> QualityCase:
    """The text read through a cache: by SmolLM2 where it is installed, else by a model trained here."""
    scope = setting.scope
    return QualityCase(
        subject="cache",
        way=way,
        sizes=READ[scope.name],
        text=scope.text or TEXT,
        model=SMOLLM2 if setting.has_smollm2 else None,
        device=setting.device,
    )


def steps(view: View[Kept]) -> list[Kind]:
    """The decode steps."""
    return [row for row in view.rows if isinstance(row.case, ModelCase)]


def readings(view: View[Kept]) -> list[Kind]:
    """The texts read."""
    return [row for row in view.rows if isinstance(row.case, QualityCase)]


def sequence_bytes(row: Kind) -> float:
    """Keys and values of one sequence at its length, scales included, as the timed step holds them: beside a
    window its cache holds the positions that are read no more, too."""
    case: ModelCase = row.case
    whole = msgspec.structs.replace(case.model, window=None)
    return cached_bytes(msgspec.structs.replace(case, model=whole)) / case.workload.batch_size


def fitting(view: View[Kept], row: Kind) -> int | None:
    """The most sequences of that length whose cache fits beside the weights in the device's memory.

    Activations and workspace are not counted, as in `plan --output-len`.
    """
    memory = view.setting.environment.device_memory_bytes
    if memory is None:
        return None
    weights = n_parameters(row.case.model) * parameter_bytes(row.case)
    return int(max(memory - weights, 0) // sequence_bytes(row))


def share_of_mha(row: Kind) -> float | None:
    """The bytes of a sequence's cache over those of MHA in the compute type."""
    assert row.point.base is not None
    plain = row.point.base[0]
    assert isinstance(plain, ModelCase)
    return ratio(sequence_bytes(row), cached_bytes(plain) / plain.workload.batch_size)


def speeds(view: View[Kept]) -> Iterator[Conclusion]:
    """Says what each kind gains over MHA whose cache is in the compute type."""
    for rows in values.groups(steps(view), lambda row: row.name):
        if rows[0].name != MHA:
            yield from gains(rows, rows[0].name, "MHA with torch's attention")


def memory(view: View[Kept]) -> Iterator[Conclusion]:
    """Says what a sequence keeps, and how many fit, at the longest length of each size."""
    ran = [row for row in steps(view) if row.time is not None]
    longest = values.largest(
        ran, lambda row: (row.point.model, row.name), lambda row: row.case.workload.seq_len
    )
    for rows in values.groups(longest, lambda row: row.point.model):
        told = Sentence()
        each = [
            f"{row.name} {told(f'bytes, {row.name}', sequence_bytes(row), 'bytes', row.measurement)}"
            f" ({told(f'fit, {row.name}', fitting(view, row), 'count', row.measurement)} fit)"
            for row in rows
        ]
        at = rows[0].case.workload.seq_len
        yield from told.end(
            f"{rows[0].point.model} at {at:,} positions, a sequence keeps: {', '.join(each)}."
        )


def quality(view: View[Kept]) -> Iterator[Conclusion]:
    """Says what each cache loses against one that keeps everything, on the same text."""
    rows = readings(view)
    yield from losses.against(rows[0], rows)


def quality_pairs(view: View[Kept]) -> list[tuple[Kind, Kind]]:
    """Each text read beside the one that keeps everything."""
    rows = readings(view)
    return [(row, rows[0]) for row in rows]


def _more(pair: tuple[Kind, Kind]) -> Any:
    row, base = pair
    return None if row is base else losses.more(row, base)


def notes(view: View[Kept]) -> tuple[str, ...]:
    """Conventions and limits."""
    setting = view.setting
    rows, prompt, new, part = READ[setting.scope.name]
    whose = (
        "SmolLM2-135M"
        if setting.has_smollm2
        else "A small decoder of bytes, trained here from one seed for every cache,"
    )
    shape, length = setting.grid.models[-1], SEQ_LENS[setting.scope.name][0]
    planned = steps_of(setting, shape, length, 1).values()
    return (
        f"Steps in {setting.precision(on_gpu='bf16')} on random weights, on a GPU as one CUDA graph. GQA has "
        f"a key for {GROUP} queries or so, MQA one for all; their projections are smaller too. A window is "
        f"{1 / PART:.0%} of the positions: a step reads these, while its cache holds all. The window of the "
        "text read holds its own tokens alone.",
        f"{whose} reads {rows} stretches of text: a prompt of {prompt:,} tokens, then {new:,} more, one at a "
        f"time. window, sinks, global and heavy hitters keep {part:,} tokens. Their steps tell the loss and "
        "no speed: they are not captured, and read int8, fp8 and int4 widened. Only caches of the decode "
        "steps have times.",
        "int4:64 weights are rounded to the numbers that the kernels of int4 weights multiply by, 64 inputs "
        "to a scale, and kept in the compute type.",
        *setting.refusals(planned),
    )


LENGTH = Value("positions", "count", lambda row: row.case.workload.seq_len)
BATCH = Value("sequences", "count", lambda row: row.case.workload.batch_size)


def step_table(view: View[Kept]) -> Iterator[Any]:
    """A table a size; how many sequences fit depends on the device."""
    fit = Value("sequences that fit", "count", lambda row: fitting(view, row))
    columns = (
        LENGTH,
        BATCH,
        text("kind", lambda row: row.name),
        STATUS,
        Value("cache of a sequence", "bytes", sequence_bytes),
        Value("of MHA", "share", share_of_mha),
        fit,
        FLOOR,
        EXPECTED,
        TIME,
        OVER_EXPECTED,
        TOKENS_PER_S,
        SHARE,
        spread("speed over MHA", lambda row: row.speed, "ratio"),
        PEAK,
        VERDICT,
        REASON,
    )
    yield from table(
        lambda row: f"A decode step of {row.point.model}",
        columns,
        steps,
        each=lambda row: row.point.model,
        note="What fits is memory less weights over a sequence's cache; activations are not counted.",
    )(view)


def _title(row: Kind) -> str:
    n = row.case.workload.batch_size
    return (
        f"Time of a decode step of {row.point.model}, {n} {'sequence' if n == 1 else 'sequences'}"
    )


STUDY = Study(
    title="What do keys and values take in memory and time, and what does keeping less lose?",
    points=points,
    needs_ceilings=True,
    tables=(
        step_table,
        table(
            "A text read token by token",
            (
                text("cache", lambda pair: pair[0].name),
                text("status", lambda pair: pair[0].status),
                Value("kept of a sequence", "bytes", lambda pair: losses.kept_bytes(pair[0])),
                Value("nats a token", "count", lambda pair: losses.mean(pair[0])),
                Value("perplexity", "count", lambda pair: losses.perplexity(pair[0])),
                spread("more loss", _more, "count"),
                text("difference", lambda pair: losses.told_apart(_more(pair))),
                text("reason", lambda pair: pair[0].reason),
            ),
            quality_pairs,
            note=f"More loss than {CONTIGUOUS}, on the same stretches in pairs, with a t-interval at 95%.",
        ),
    ),
    plots=(
        plot(
            _title,
            LENGTH,
            Value("time", "s", lambda row: row.time),
            lambda row: row.name,
            steps,
            each=lambda row: (row.point.model, row.case.workload.batch_size),
            log="xy",
        ),
    ),
    claims=(memory, speeds, quality),
    notes=notes,
)
