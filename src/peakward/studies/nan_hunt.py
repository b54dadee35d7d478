"""Study `nan-hunt`: a run that trains well and turns NaN, told from the first repetition to the last gap.

A small decoder is trained on real text under watch (`lab/debugging/story.py`): as written, at a tenth of the
rate, and mended. The hunt names the operator, the channel and the change that helps. Then the step of the
mended program is profiled, at a size that is worth it: the loader holds it up, then its own launches.
"""

from collections.abc import Callable, Iterable, Iterator
from statistics import fmean
from typing import Any

from peakward.records.case import ModelCase, NumericsCase, Source
from peakward.records.study import Conclusion
from peakward.studies import data_loading, hunted, values
from peakward.studies.cases import model_case, with_levers, with_work
from peakward.studies.claims import Sentence, speeds
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.hunted import LAST, WAYS, hunt, last_loss, losses, runs, zeros
from peakward.studies.readings import mean_s, ratio
from peakward.studies.scope import ScopeName
from peakward.studies.setting import Setting
from peakward.studies.values import REASON, STATUS, Value, label, of_row, plot, spread, table, text

TEXT = Source("python-topics")
RUNS: dict[ScopeName, tuple[int, int]] = {"small": (1, 300), "corners": (3, 300), "full": (8, 600)}
"""Seeds, and the steps of each run."""
DECODER = (2, 64, 64, 8)
"""Layers, width, length and sequences of a batch."""
EVERY = 5
"""A curve has a point for every so many steps."""
ON_THE_FLY, LOADED, COMPILED = "fed on the fly", "fed by workers", "fed by workers, compiled"
N_WORKERS = 2
DATA_LOADING = "data_loading"


def points(setting: Setting) -> Iterator[Point[Any]]:
    """Seed × way of the run; then the step of a decoder, fed in two ways and compiled."""
    scope = setting.scope
    n_seeds, n_steps = RUNS[scope.name]
    for seed in range(n_seeds):
        for way in WAYS:
            case = NumericsCase(
                subject="hunt",
                way=way,
                sizes=(*DECODER, n_steps),
                text=scope.text or TEXT,
                device=setting.device,
                seed=seed,
            )
            yield Point(case=case, protocol=setting.protocol(), name=way)
    yield from steps(setting)


def steps(setting: Setting) -> Iterator[Point[Any]]:
    """A train step that tokenises each batch itself, one whose batches workers make, and the same compiled;
    each held against the one before."""
    by = setting.protocol(
        warmup_steps=data_loading.WARMUP_STEPS,
        min_steps=data_loading.MIN_STEPS,
        relative_half_width=0.0,
        phases=False,
    )
    before = None
    for name, case in fed(setting).items():
        absent = setting.obstacle(case)
        yield Point(
            case=case,
            protocol=by,
            name=name,
            base=before,
            also="profile",
            timed=mean_s,
            absent=absent,
        )
        before = (case, by)


def fed(setting: Setting) -> dict[str, ModelCase]:
    """The three steps by name, of the first size of the grid at its shortest length."""
    grid, on_gpu = setting.grid, setting.device == "cuda"
    quick = {"attention": "sdpa", "optimizer": "adamw-fused"} if on_gpu else {}
    bare = model_case(
        grid.models[0],
        grid.batch_size,
        grid.seq_lens[0],
        "train_step",
        setting.device,
        precision=setting.precision(on_gpu="bf16-mixed"),
        **quick,
    )
    slow = data_loading.text_data(setting, tokenise="on-the-fly")
    ahead = data_loading.text_data(
        setting, n_workers=N_WORKERS, pin_memory=on_gpu, non_blocking=on_gpu
    )
    loaded = with_work(bare, data=ahead)
    return {
        ON_THE_FLY: with_work(bare, data=slow),
        LOADED: loaded,
        COMPILED: with_levers(loaded, compile="default"),
    }


def stepped(view: View[Any]) -> list[Row[Any]]:
    """The steps."""
    return [row for row in view.rows if isinstance(row.case, ModelCase)]


def waited(row: Row[Any]) -> float | None:
    """The share of the step in which the device waits for a batch: a GPU's idle time, a CPU's wait."""
    found = None if row.measurement is None else row.measurement.feeding
    if found is None:
        return None
    return ratio(fmean(found.wait_s if found.idle_s is None else found.idle_s), row.median_s)


def idle(row: Row[Any], cause: str | None = None) -> float | None:
    """The share of the profiled steps in which the GPU is idle, for a cause or for any; None on a CPU."""
    found = None if row.profile is None else row.profile.profile
    if found is None or found.idle is None:
        return None
    together = found.idle.together
    ns = together.idle_ns if cause is None else together.by_cause_ns.get(cause, 0)
    return ratio(ns, found.breakdown.together.span_ns)


def gaps(view: View[Any]) -> Iterator[Conclusion]:
    """Says what each step waits for, and how much faster it is than the one before."""
    for row in stepped(view):
        share = waited(row)
        if share is None:
            continue
        told = Sentence()
        wait = told("wait", share, "share", row.measurement)
        said = f"{row.name.capitalize()}, a step waits {wait} of its time for its batch"
        if (whole := idle(row)) is not None:
            said += f"; under the profiler the GPU is idle for {told('idle', whole, 'share', row.profile)}, "
            loading = told("idle for data", idle(row, DATA_LOADING), "share", row.profile)
            said += f"{loading} because of the loader"
        if row.speed is not None:
            speed = told.interval("speed over the step before", row.speed, "ratio", *row.both)
            said += f"; it runs at {speed} the speed of the step before{row.sure}"
        yield from told.end(f"{said}.")


def whole(view: View[Any]) -> Iterator[Conclusion]:
    """Says what workers and compilation gain together."""
    timed = {row.name: row for row in stepped(view) if row.time is not None}
    if {ON_THE_FLY, COMPILED} <= timed.keys():
        last = timed[COMPILED].against(timed[ON_THE_FLY])
        yield from speeds([last], f"The mended program, {COMPILED},", f"the one {ON_THE_FLY}")


def curves(view: View[Any], of: Callable[[Row[Any]], Iterable[float]]) -> Iterator[Any]:
    """Each run of the first seed with every so manyth step and its value."""
    for row in runs(view):
        if row.case.seed == 0:
            yield from ((row, n, each) for n, each in enumerate(of(row)) if n % EVERY == 0)


def curve(title: str, name: str, of: Callable[[Row[Any]], Iterable[float]]) -> Any:
    """A line for each run of the first seed."""
    return plot(
        title,
        Value("step", "count", lambda mark: mark[1]),
        Value(name, "count", lambda mark: mark[2]),
        lambda mark: mark[0].name,
        lambda view: curves(view, of),
    )


RUN = (Value("seed", "count", lambda row: row.case.seed), label("run", lambda row: row.name))
STUDY = Study(
    title="A run trains well and turns NaN: where, why, what mends it, and what then slows it?",
    points=points,
    tables=(
        table(
            "The runs",
            (
                *RUN,
                text("outcome", lambda row: "not run" if (it := hunt(row)) is None else it.outcome),
                Value("steps", "count", lambda row: len(losses(row))),
                Value("first loss", "count", lambda row: next(iter(losses(row)), None)),
                Value("last loss", "count", last_loss),
                REASON,
            ),
            lambda view: (row for row in view.rows if isinstance(row.case, NumericsCase)),
            note=f"Steps whose loss is finite; the last loss is the mean of {LAST} of them.",
        ),
        table(
            "The first bad operators",
            (
                *of_row(*RUN),
                Value("step", "count", lambda pair: pair[1].step),
                label("operator", lambda pair: pair[1].operator),
                text("module", lambda pair: pair[1].module),
                Value("channel", "count", lambda pair: getattr(pair[1].channel, "index", None)),
                Value("zeros there", "share", lambda pair: next(iter(zeros(pair[0])[-1:]), None)),
                text("cause", lambda pair: getattr(hunted.cause(pair[0]), "kind", None)),
            ),
            hunted.faults,
        ),
        table(
            "What was tried",
            (
                *of_row(*RUN),
                label("change", lambda pair: pair[1].fix),
                text("of", lambda pair: pair[1].target),
                text("stays finite", lambda pair: "yes" if pair[1].passes else "no"),
                Value("steps", "count", lambda pair: pair[1].n_steps),
                Value("loss", "count", lambda pair: pair[1].last_loss),
            ),
            hunted.trials,
            note="Each from the last good snapshot on.",
        ),
        table(
            "The step of the mended program",
            (
                *values.SIZE,
                label("way", lambda row: row.name),
                STATUS,
                spread("mean step"),
                Value("waits for its batch", "share", waited),
                Value("GPU idle", "share", idle),
                Value("for the loader", "share", lambda row: idle(row, DATA_LOADING)),
                spread("speed over the one before", lambda row: row.speed, "ratio"),
                REASON,
            ),
            stepped,
            note="Idle shares are of a profiled step, which the profiler slows; no time is taken from it.",
        ),
    ),
    plots=(
        curve("Loss by step, the first seed", "loss", losses),
        curve("Zeros in the channel that died, the first seed", "share of zeros", zeros),
    ),
    claims=(*hunted.CLAIMS, gaps, whole),
    notes=lambda view: (
        "The runs round activations to int8 over the largest magnitude of each channel; as written nothing "
        "is added to that scale. The steps are of a larger decoder without it: their time is the question.",
        *view.setting.refusals(fed(view.setting).values()),
    ),
)
