"""Study `positions`: what each kind of positions costs, and what it loses beyond the trained length.

The cost is that of a train step of one decoder with each kind. The loss is that of a small decoder, trained
here on real text from one seed with each kind, and read up to several times its trained length.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, get_args

import msgspec

from peakward.prediction.parameters import n_parameters
from peakward.records.case import QualityCase, Source
from peakward.records.model_shape import ModelShape, Positions
from peakward.records.study import Conclusion
from peakward.stats.summary import paired_difference
from peakward.studies import losses, values
from peakward.studies.cases import model_case
from peakward.studies.claims import Sentence, gains
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.scope import ScopeName
from peakward.studies.setting import Setting
from peakward.studies.values import (
    PEAK,
    REASON,
    SEQ_LEN,
    STATUS,
    TIME,
    VERDICT,
    Value,
    plot,
    spread,
    table,
    text,
)

KINDS: tuple[Positions, ...] = get_args(Positions)
BASE: Positions = "sinusoidal"
"""It has no parameters and does nothing in the blocks: the others cost what they take beyond it."""
SCALED = "sinusoidal, scaled"
"""Its way in `lab.quality.positions.WAYS`, which has the others by their names."""
TEXT = Source("python-topics")
"""It comes with Python."""
TRAINED: dict[ScopeName, tuple[int, ...]] = {
    "small": (2, 128, 64, 4, 8, 150),
    "corners": (4, 256, 256, 8, 32, 600),
    "full": (6, 384, 512, 8, 32, 3000),
}
"""Layers, width, trained length, times that length read, sequences of a batch, steps: those of
`lab.quality.positions`."""


class Kind(Point[Any], frozen=True, kw_only=True):
    """A train step, or a trained and read model, with one kind of positions."""

    model: str


def points(setting: Setting) -> Iterator[Kind]:
    """Size × length × kind as train steps, each held against sinusoidal; then each kind trained and read."""
    grid, protocol = setting.grid, setting.protocol(phases=False)
    lengths = grid.seq_lens[-1:] if setting.scope.name == "small" else grid.seq_lens
    for shape, n, kind in product(grid.models[:1], lengths, KINDS):
        step = partial(_step, setting, shape, n)
        yield Kind(
            case=step(kind),
            protocol=protocol,
            name=kind,
            base=(step(BASE), protocol),
            model=shape.name,
        )
    for kind in KINDS:
        yield Kind(case=reading(setting, kind), protocol=protocol, name=kind, model="trained")


def _step(setting: Setting, shape: ModelShape, n: int, kind: Positions) -> Any:
    longest = max(n, shape.max_seq_len)
    name = shape.name if kind == BASE else f"{shape.name}-{kind}"
    named = msgspec.structs.replace(shape, name=name, positions=kind, max_seq_len=longest)
    # On a GPU as one graph: launched one by one a step of `small` at 4 × 128 tokens takes 18.1 ms for 6.9,
    # and kinds differ by 0.2 to 1.2 (H200).
    levers = {
        "precision": setting.precision(on_gpu="bf16-mixed"),
        "attention": "sdpa",
        "cuda_graphs": setting.device == "cuda",
    }
    return model_case(named, setting.grid.batch_size, n, "train_step", setting.device, **levers)


def reading(setting: Setting, kind: Positions) -> QualityCase:
    """A model of its own trained with the kind, and read beyond its length."""
    scope = setting.scope
    return QualityCase(
        subject="positions",
        way=SCALED if kind == BASE else kind,
        sizes=TRAINED[scope.name],
        text=scope.text or TEXT,
        device=setting.device,
    )


def steps(view: View[Kind]) -> list[Row[Kind]]:
    """The train steps."""
    return [row for row in view.rows if not isinstance(row.case, QualityCase)]


def readings(view: View[Kind]) -> list[Row[Kind]]:
    """The models trained here."""
    return [row for row in view.rows if isinstance(row.case, QualityCase)]


def spans(view: View[Kind]) -> list[tuple[Row[Kind], int]]:
    """Each model trained here with each part of the length it is read over."""
    return [(row, at) for row in readings(view) for at in range(losses.n_places(row) or 1)]


def beyond(pair: tuple[Row[Kind], int]) -> float | None:
    """How much more loss there is than within the trained length, in nats a byte."""
    row, at = pair
    here, within = losses.mean(row, at), losses.mean(row)
    return None if here is None or within is None or at == 0 else here - within


def last_position(pair: tuple[Row[Kind], int]) -> int:
    """The last position of the part."""
    row, at = pair
    _, _, length, factor, *_ = row.case.sizes
    return int(min(length * 2**at, length * factor))


def costs(view: View[Kind]) -> Iterator[Conclusion]:
    """Says what each kind makes of a step's speed, over sinusoidal."""
    for rows in values.groups(steps(view), lambda row: row.name):
        if rows[0].name != BASE:
            yield from gains(rows, rows[0].name, f"a step with {BASE} positions")


def extrapolation(view: View[Kind]) -> Iterator[Conclusion]:
    """The loss within the trained length and in the last part beyond it, of each kind."""
    for row in readings(view):
        found = losses.losses(row)
        if found is None:
            continue
        last = losses.n_places(row) - 1
        told, behind = Sentence(), row.measurement
        difference = paired_difference(losses.losses(row, last) or (), found)
        if difference is None:
            continue
        within = told("loss within", losses.mean(row), "count", behind)
        after = told("loss beyond", losses.mean(row, last), "count", behind)
        change = told("more loss", difference.estimate, "count", behind)
        low = told("more loss, low end", difference.low, "count", behind)
        high = told("more loss, high end", difference.high, "count", behind)
        at = losses.where(row, last)
        yield from told.end(
            f"{row.name}: {within} nats a byte within the trained length, {after} at positions {at}: "
            f"{change} more ({low} to {high})."
        )


def best(view: View[Kind]) -> Iterator[Conclusion]:
    """The kind with the least loss in each part of the length."""
    for of_part in values.groups(spans(view), lambda pair: pair[1]):
        known = [(loss, row) for row, at in of_part if (loss := losses.mean(row, at)) is not None]
        if len(known) > 1:
            told, ranked = Sentence(), sorted(known, key=lambda each: each[0])
            named = told.by_name("loss", ranked, "count")
            (_, least), *others = ranked
            at = of_part[0][1]
            alike = [row.name for _, row in others if is_alike(row, least, at)]
            doubt = f"; on this text not told apart from {least.name}: {', '.join(alike)}"
            yield from told.end(
                f"Nats a byte at positions {losses.where(least, at)}, the least first: "
                f"{named}{doubt if alike else ''}."
            )


def is_alike(row: Row[Kind], other: Row[Kind], at: int) -> bool:
    """Whether the two losses are not told apart at one place of the text."""
    return losses.told_apart(losses.more(row, other, at)) == "not told apart"


def _of(get: Callable[[Row[Kind], int], Any]) -> Callable[[tuple[Row[Kind], int]], Any]:
    return lambda pair: get(*pair)


def notes(setting: Setting) -> tuple[str, ...]:
    """Limits that a reader must know."""
    layers, width, length, _, batch, n_steps = TRAINED[setting.scope.name]
    return (
        f"The models whose loss is told are trained here: {layers} layers of width {width} on sequences of "
        f"{length} bytes, {n_steps:,} steps of {batch} sequences. Other sizes and longer training may rank "
        "the kinds otherwise.",
        "Beside sinusoids the models trained here multiply tokens by the square root of the width, as the "
        "paper has it (Vaswani et al. 2017, section 3.4).",
        "A learned table has rows for all positions read, of which those beyond the trained length keep "
        "their initial values.",
        "Timed steps are one CUDA graph on a GPU.",
        "One seed: the interval of a difference is over sequences of text, and not over trainings.",
    )


LOSS = Value("nats a byte", "count", _of(losses.mean))
LAST = Value("last position", "count", last_position)
STUDY = Study(
    title="What do positions cost, and what do they lose beyond the length trained on?",
    points=points,
    tables=(
        table(
            lambda row: f"A train step of {row.point.model}",
            (
                SEQ_LEN,
                text("positions", lambda row: row.name),
                STATUS,
                Value("parameters", "count", lambda row: n_parameters(row.case.model)),
                TIME,
                spread(f"speed over {BASE}", lambda row: row.speed, "ratio"),
                PEAK,
                VERDICT,
                REASON,
            ),
            steps,
            each=lambda row: row.point.model,
        ),
        table(
            "Loss on held-out text",
            (
                text("positions", lambda pair: pair[0].name),
                text("status", lambda pair: pair[0].status),
                text("read at", _of(losses.where)),
                LOSS,
                Value("perplexity", "count", _of(losses.perplexity)),
                Value("more than within", "count", beyond),
                text("reason", lambda pair: pair[0].reason),
            ),
            spans,
            note="The mean over sequences of bytes that were not trained on, each read as one sequence. The "
            "first part is the trained length.",
        ),
    ),
    plots=(
        plot(
            "Loss by position",
            LAST,
            LOSS,
            lambda pair: pair[0].name,
            spans,
            log="x",
        ),
    ),
    claims=(costs, extrapolation, best),
    notes=lambda view: notes(view.setting),
)
