"""Study `precision`: what each precision gains in a step, what its casts take, and how far it drifts.

Passes of whole models, held against fp32; the product of queries and keys alone; the casts of a profiled
train step; and logits, loss and gradients against fp64.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, Literal, get_args

from peakward.diagnose.rules.casts import CASTS
from peakward.records.case import MicroCase, ModelCase, ModulePass, NumericsCase, Precision
from peakward.records.model_shape import ModelShape
from peakward.records.profile import KernelGroup
from peakward.records.study import Conclusion
from peakward.report.cases import workload
from peakward.studies import drift, pieces, values
from peakward.studies.cases import model_case
from peakward.studies.claims import Sentence, gains, not_timed
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.number_formats import obstacle
from peakward.studies.readings import ratio
from peakward.studies.setting import Setting
from peakward.studies.values import (
    MEDIAN,
    PEAK,
    REASON,
    STATUS,
    TIME,
    TOKENS_PER_S,
    VERDICT,
    Value,
    label,
    plot,
    spread,
    table,
    text,
)
from peakward.traces.category_rules import Category

BASE: Precision = "fp32"
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
PASSES: tuple[ModulePass, ...] = get_args(ModulePass)
SCORES: dict[str, str] = {
    "fp32": "fp32",
    "tf32": "tf32",
    "bf16-mixed": "bf16",
    "fp16-mixed": "fp16",
    "bf16": "bf16",
}
"""The type that a precision computes scores in. fp8 is of linear layers: its scores are in bf16."""
NS = 1e-9
Part = Literal["step", "scores", "drift"]


class Way(Point[Any], frozen=True, kw_only=True):
    """A pass of a model, its scores alone, or its drift, in one precision."""

    part: Part
    shape: ModelShape


WayRow = Row[Any]


def points(setting: Setting) -> Iterator[Way]:
    """Size × sequence × pass × precision; size × sequence × type of the scores; size × precision drifting."""
    grid = setting.grid
    for shape, seq_len in product(grid.models, lengths(setting)):
        for pass_, precision in product(PASSES, precisions(setting)):
            yield _step(setting, shape, seq_len, pass_, precision)
        for kind in dict.fromkeys(SCORES[each] for each in precisions(setting) if each in SCORES):
            yield _scores(setting, shape, seq_len, kind)
    for shape, precision in product(grid.models, precisions(setting)):
        case = model_case(
            shape,
            grid.batch_size,
            max(grid.seq_lens),
            "forward",
            setting.device,
            precision=precision,
        )
        yield Way(
            case=NumericsCase(
                subject="drift",
                way=precision,
                sizes=(grid.batch_size, max(grid.seq_lens)),
                model=shape,
                device=setting.device,
            ),
            protocol=setting.protocol(),
            name=precision,
            part="drift",
            shape=shape,
            absent=setting.obstacle(case),
        )


def _step(
    setting: Setting, shape: ModelShape, seq_len: int, pass_: ModulePass, precision: Precision
) -> Way:
    """A pass; the train step is profiled too. Few steps: fp32 takes seconds for one."""
    protocol = setting.protocol(phases=False, min_steps=5)

    def case(of: Precision) -> ModelCase:
        batch_size = setting.grid.batch_size
        return model_case(shape, batch_size, seq_len, pass_, setting.device, precision=of)

    return Way(
        case=case(precision),
        protocol=protocol,
        name=precision,
        base=(case(BASE), protocol),
        also="profile" if pass_ == "train_step" else None,
        part="step",
        shape=shape,
        absent=setting.obstacle(case(precision)),
    )


def _scores(setting: Setting, shape: ModelShape, seq_len: int, kind: str) -> Way:
    def case(of: str) -> MicroCase:
        return MicroCase(
            subject="scores",
            piece=of,
            sizes=(setting.grid.batch_size, shape.n_heads, seq_len, shape.head_dim),
            precision="tf32" if of == "tf32" else "fp32",
            device=setting.device,
        )

    by = pieces.protocol(setting)
    return Way(
        case=case(kind),
        protocol=by,
        name=kind,
        base=(case(BASE), by),
        part="scores",
        shape=shape,
        absent=obstacle(kind, setting),
    )


def precisions(setting: Setting) -> tuple[Precision, ...]:
    """Those of the scope, fp32 always first: it is what the others are held against."""
    return tuple(dict.fromkeys((BASE, *(setting.scope.precisions or PRECISIONS))))


def lengths(setting: Setting) -> tuple[int, ...]:
    """The longest alone where the user names none and the grid is not the full one."""
    scope, own = setting.scope, setting.grid.seq_lens
    return own if scope.seq_lens or scope.name == "full" else own[-1:]


def part(view: View[Way], wanted: Part) -> list[WayRow]:
    """The rows of one part."""
    return [row for row in view.rows if row.point.part == wanted]


def lower(rows: list[WayRow]) -> list[WayRow]:
    """The rows that are held against fp32."""
    return [row for row in rows if row.name != BASE]


def kernels(row: WayRow) -> tuple[KernelGroup, ...]:
    """The kernels of a profiled step, without the driver's own copies and sets."""
    found = () if row.profile is None else row.profile.profile.kernels
    return tuple(each for each in found if each.category != Category.MEMORY)


def casts_share(row: WayRow) -> float | None:
    """The kernels whose names say that they change a type, over all kernel time; None where the trace is of
    the host, whose operators only say that they copy."""
    if row.profile is None or row.profile.profile.is_of_host:
        return None
    casts = sum(each.total_ns for each in kernels(row) if CASTS.search(each.name))
    return ratio(casts, sum(each.total_ns for each in kernels(row)))


def copies_share(row: WayRow) -> float | None:
    """The kernels that cast, move or rearrange, over all kernel time."""
    copies = sum(each.total_ns for each in kernels(row) if each.category == Category.COPY)
    return ratio(copies, sum(each.total_ns for each in kernels(row)))


def copies_s(row: WayRow) -> float | None:
    """The time of copies in a step, in seconds."""
    if row.profile is None:
        return None
    copies = sum(each.total_ns for each in kernels(row) if each.category == Category.COPY)
    return copies * NS / row.profile.n_steps


def speeds(view: View[Way]) -> Iterator[Conclusion]:
    """Says what each precision gains in each pass, by size."""
    rows = lower(part(view, "step"))
    for group in values.groups(rows, lambda row: (row.case.workload.pass_, row.name)):
        if all(row.time is None for row in group):
            continue
        absent = not_timed(row for row in group if row.time is None)
        # The place of a single row names its pass.
        n_compared = sum(row.speed is not None for row in group)
        named = group[0].name + ("" if n_compared == 1 else f" {group[0].case.workload.pass_}")
        yield from gains(group, named, BASE, absent=absent)


def scores(view: View[Way]) -> Iterator[Conclusion]:
    """Says for each size what the types gain in the scores alone, and what the forward pass gains beside."""
    forward = {
        (row.point.shape, row.case.workload.seq_len, SCORES.get(row.name)): row
        for row in part(view, "step")
        if row.case.workload.pass_ == "forward"
    }
    for row in lower(part(view, "scores")):
        whole = forward.get((row.point.shape, row.case.sizes[2], row.name))
        if row.speed is None:
            continue
        told = Sentence()
        said = told.interval("speed over fp32", row.speed, "ratio", *row.both)
        beside = ""
        if whole is not None and whole.speed is not None:
            gain = told.estimate("speed of the forward pass", whole.speed, "ratio", *whole.both)
            beside = f"; the forward pass in {whole.name} at {gain}"
        yield from told.end(
            f"The scores of {row.point.shape.name} ({pieces.sizes(row)}) run in {row.name} at {said} the "
            f"speed of {BASE}{row.within}{beside}."
        )


def casts(view: View[Way]) -> Iterator[Conclusion]:
    """Says for each profiled train step which share goes to casts and copies, by precision."""
    rows = [row for row in part(view, "step") if row.profile is not None]
    for group in values.groups(rows, lambda row: (row.point.shape, row.case.workload.seq_len)):
        told, said = Sentence(), []
        for row in group:
            share, copied = casts_share(row), copies_share(row)
            if copied is None:
                continue
            of_casts = (
                ""
                if share is None
                else f"{told(f'casts, {row.name}', share, 'share', row.profile)} and "
            )
            of_copies = told(f"copies, {row.name}", copied, "share", row.profile)
            said.append(f"{row.name} {of_casts}{of_copies}")
        what = (
            "casts and all copies, casts among them,"
            if view.on_gpu
            else "copies, casts among them,"
        )
        if said:
            yield from told.end(
                f"Of the work of a {place(group[0])} {what} take: {', '.join(said)}."
            )


def place(row: WayRow) -> str:
    """For a sentence: "train_step of small 4 × 1024"."""
    work = row.case.workload
    return f"{work.pass_} of {row.point.shape.name} {work.batch_size} × {work.seq_len}"


def tradeoff(view: View[Way]) -> list[tuple[WayRow, float]]:
    """Each train step of the longest sequence with the drift of its gradients."""
    errors = {
        (row.point.shape, row.name): each.error
        for row, each in drift.drifts(view)
        if each.quantity == "gradients"
    }
    steps = [row for row in part(view, "step") if row.case.workload.pass_ == "train_step"]
    longest = values.largest(
        steps, lambda row: (row.point.shape, row.name), lambda row: row.case.workload.seq_len
    )
    return [(row, errors[key]) for row in longest if (key := (row.point.shape, row.name)) in errors]


SPEED = spread(f"speed over {BASE}", lambda row: row.speed, "ratio")
STUDY = Study(
    title="What does each precision gain, what do its casts take, and how far do its numbers drift?",
    points=points,
    tables=(
        table(
            "Passes by precision",
            (
                text("model", lambda row: row.point.shape.name),
                text("workload", lambda row: workload(row.case.workload)),
                label("precision", lambda row: row.name),
                STATUS,
                TIME,
                TOKENS_PER_S,
                SPEED,
                PEAK,
                VERDICT,
                REASON,
            ),
            lambda view: part(view, "step"),
        ),
        table(
            "The scores alone: queries times keys",
            (
                text("model", lambda row: row.point.shape.name),
                text("batch × heads × length × head dim", pieces.sizes),
                label("type", lambda row: row.name),
                STATUS,
                pieces.RATE,
                TIME,
                SPEED,
                pieces.DIFFERENCE,
                VERDICT,
                REASON,
            ),
            lambda view: part(view, "scores"),
            note="Operands are converted before anything is timed. Mixed and pure precisions of 16 bits have "
            "one type; fp8 is of linear layers, and its scores are in bf16.",
        ),
        table(
            "Casts and copies in a train step",
            (
                text("model", lambda row: row.point.shape.name),
                text("workload", lambda row: workload(row.case.workload)),
                label("precision", lambda row: row.name),
                Value("casts", "share", casts_share),
                Value("copies", "share", copies_share),
                Value("copies a step", "s", copies_s),
                MEDIAN,
            ),
            lambda view: (row for row in part(view, "step") if row.profile is not None),
            note="Shares of the kernel time of a profiled step. Casts are the copy kernels whose names say "
            "that they change the type; a trace of the host does not tell them. Copies compute nothing.",
        ),
        drift.table_of_drifts,
    ),
    plots=(
        plot(
            "Speed of a train step against the error of its gradients",
            Value("error of the gradients", "count", lambda pair: pair[1]),
            Value(f"speed over {BASE}", "ratio", lambda pair: pair[0].speed),
            lambda pair: pair[0].point.shape.name,
            tradeoff,
            names=lambda pair: pair[0].name,
            log="xy",
        ),
    ),
    claims=(speeds, scores, casts, drift.distances),
    notes=lambda view: (
        "Profiled times are in no other figure. What cannot run here is told in its row.",
        *view.setting.refusals(
            each.case for each in points(view.setting) if isinstance(each.case, ModelCase)
        ),
    ),
)
