"""Study `decode`: what a step of generation takes, from a loop that keeps nothing to one launch.

A step without a cache computes all earlier tokens again; with one it computes the newest alone, and reads
the weights and the cache. Then the step is one CUDA graph, and its parts are Peakward's kernels.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

from peakward.levers import kv_cache
from peakward.prediction.flops import forward_flops, step_flops
from peakward.records.case import ModelCase
from peakward.records.model_shape import ModelShape
from peakward.records.study import Conclusion
from peakward.studies import values
from peakward.studies.cases import model_case
from peakward.studies.claims import Sentence, compared, extremes, gains, grows
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.expected import (
    EXPECTED,
    EXPECTED_PEAK,
    FLOOR,
    OVER_EXPECTED,
    SHARE,
)
from peakward.studies.power_law import exponent
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

NAIVE, CACHED = "re-projection", "KV cache"
GRAPHS, FUSED = "CUDA graph", "CUDA graph of fused kernels"
WHOLE = "CUDA graph of the fused step"
WAYS: dict[str, dict[str, Any]] = {
    NAIVE: {"kv_cache": "none"},
    CACHED: {},
    GRAPHS: {"cuda_graphs": True},
    FUSED: {
        "cuda_graphs": True,
        "attention": "flash-decode",
        "norm": "fused",
        "rope": "fused",
        "swiglu": "fused",
    },
    WHOLE: {"cuda_graphs": True, "attention": "flash-decode", "more": (("decode_step", "fused"),)},
}
"""Each by what differs from a cache, torch's attention and eager kernels."""
SEQ_LENS = {
    "small": (64, 256, 1024),
    "corners": (128, 1024, 4096),
    "full": (128, 256, 512, 1024, 2048, 4096, 8192),
}
"""Three at least, for an exponent."""
Step = Point[ModelCase]


def points(setting: Setting) -> Iterator[Step]:
    """Size × length × way, in bf16 on a GPU, of one sequence; each held against keeping nothing."""
    scope, protocol = setting.scope, setting.protocol(phases=False)
    for shape, n, way in product(
        setting.grid.models, scope.seq_lens or SEQ_LENS[scope.name], available(setting)
    ):
        yield Point(
            case=case(setting, shape, n, way),
            protocol=protocol,
            name=way,
            base=(case(setting, shape, n, NAIVE), protocol),
        )


def available(setting: Setting) -> tuple[str, ...]:
    """The ways that this machine can go."""
    shape = setting.grid.models[0]
    return tuple(way for way in WAYS if setting.obstacle(case(setting, shape, 64, way)) is None)


def case(setting: Setting, shape: ModelShape, n: int, way: str) -> ModelCase:
    """A step at n positions in one of the ways."""
    levers = {"precision": setting.precision(on_gpu="bf16"), "attention": "sdpa"} | WAYS[way]
    batch_size = setting.scope.batch_size or 1
    return model_case(shape, batch_size, n, "decode", setting.device, **levers)


def flops_per_token(row: Row[Step]) -> float:
    """The FLOPs that a step computes, recomputed ones too, for a token that it makes."""
    found, work = row.point.case, row.point.case.workload
    if kv_cache.recomputes(found):
        return forward_flops(found.model, work.batch_size, work.seq_len) / work.batch_size
    return (step_flops(found) or 0.0) / work.batch_size


def of_cached(view: View[Step]) -> list[Row[Step]]:
    """The ways that keep keys and values, but for the plain one, each held against that."""
    plain = {place(row): row for row in view.rows if row.name == CACHED}
    return [row.against(plain[place(row)]) for row in view.rows if row.name not in (NAIVE, CACHED)]


def place(row: Row[Step]) -> str:
    """For a sentence: "2.7B at 1,024 positions"."""
    return f"{row.point.case.model.name} at {row.point.case.workload.seq_len:,} positions"


def model(row: Row[Step]) -> str:
    """The model's name."""
    return str(row.point.case.model.name)


def curves(view: View[Step]) -> tuple[tuple[Row[Step], ...], ...]:
    """Rows that differ in their length alone, the shortest first."""
    ordered = sorted(view.rows, key=lambda row: row.point.case.workload.seq_len)
    return values.groups(ordered, lambda row: (model(row), row.name))


def flops_power(curve: tuple[Row[Step], ...]) -> float | None:
    """The exponent of the FLOPs a token in the length."""
    lengths = [row.point.case.workload.seq_len for row in curve]
    return exponent(lengths, [flops_per_token(row) for row in curve])


def keeping(view: View[Step]) -> Iterator[Conclusion]:
    """Says what keeping nothing costs in FLOPs and in time, at the longest length that ran of each size."""
    by_place = values.groups(view.rows, place)
    found = [{row.name: row for row in rows} for rows in by_place]
    ran = [each for each in found if each[NAIVE].time and each[CACHED].time]
    for each in values.largest(
        ran, lambda each: model(each[NAIVE]), lambda each: each[NAIVE].case.workload.seq_len
    ):
        naive, cached = each[NAIVE], each[CACHED]
        told = Sentence()
        without, with_one = (
            told("FLOPs a token", flops_per_token(way), "flops", way.measurement)
            for way in (naive, cached)
        )
        yield from told.end(
            f"{place(naive)}: a token takes {without} by {NAIVE} and {with_one} with a {CACHED}."
        )
        yield from compared(place(naive), naive, cached)


def growth(view: View[Step]) -> Iterator[Conclusion]:
    """How the time of a step grows with its length, with and without a cache."""
    for curve in curves(view):
        if curve[0].name in (NAIVE, CACHED):
            yield from grows(f"{model(curve[0])}, {curve[0].name}: a step's time", curve, LENGTH)


def steps(view: View[Step]) -> Iterator[Conclusion]:
    """Says what each way gains over an eager step with a cache."""
    for rows in values.groups(of_cached(view), lambda row: row.name):
        yield from gains(rows, rows[0].name, f"an eager step with a {CACHED}")


def shares(view: View[Step]) -> Iterator[Conclusion]:
    """How near each way comes to the bandwidth, and its time to the predicted one."""
    for rows in values.groups(view.rows, lambda row: row.name):
        subject = f"{rows[0].name}: the bytes that a step must move take"
        yield from extremes(
            subject, SHARE, rows, of="of its time at the copy bandwidth", where=place
        )
        yield from extremes(
            f"{rows[0].name}: a step takes",
            OVER_EXPECTED,
            rows,
            of="of the predicted time",
            where=place,
        )


LENGTH = Value("positions", "count", lambda row: row.point.case.workload.seq_len)
STUDY = Study(
    title="What does a step of generation take, and what does it take of the bandwidth?",
    points=points,
    needs_ceilings=True,
    tables=(
        table(
            lambda row: f"A step of {model(row)}",
            (
                LENGTH,
                text("way", lambda row: row.name),
                STATUS,
                Value("FLOPs a token", "flops", flops_per_token),
                FLOOR,
                EXPECTED,
                TIME,
                OVER_EXPECTED,
                TOKENS_PER_S,
                SHARE,
                spread(f"speed over {NAIVE}", lambda row: row.speed, "ratio"),
                EXPECTED_PEAK,
                PEAK,
                VERDICT,
                REASON,
            ),
            each=model,
            note="The floor is that of a step with a cache, for all ways: what the newest token needs. On a "
            "CPU the process's memory is measured.",
            about=((EXPECTED, "The predicted time has its own interval."),),
        ),
        table(
            "Exponents in the length",
            (
                text("model", lambda curve: model(curve[0])),
                text("way", lambda curve: curve[0].name),
                Value("FLOPs a token", "count", flops_power),
            ),
            curves,
            note="The k of c·length^k by least squares on logarithms. Those of the times are in the "
            "conclusions, with intervals.",
        ),
    ),
    plots=(
        plot(
            lambda row: f"Time of a step, {model(row)}",
            LENGTH,
            Value("time", "s", lambda row: row.time),
            lambda row: row.name,
            each=model,
            log="xy",
        ),
        plot(
            lambda row: f"Share of the copy bandwidth, {model(row)}",
            LENGTH,
            SHARE,
            lambda row: row.name,
            each=model,
            log="x",
        ),
    ),
    claims=(keeping, growth, steps, shares),
    notes=lambda view: (
        f"Steps in {view.setting.precision(on_gpu='bf16')} on random weights, with torch's "
        f"scaled_dot_product_attention where nothing else is said. "
        f"{NAIVE} runs the model over all tokens and takes the last logits.",
        "Bytes that a step must move are the weights and the keys and values in reach, each once. What fits "
        "in a cache of the processor need not be moved, and may take less time than at the copy bandwidth.",
        *view.setting.refusals(
            case(view.setting, view.setting.grid.models[0], 64, way) for way in WAYS
        ),
    ),
)
