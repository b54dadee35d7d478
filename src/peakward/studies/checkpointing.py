"""Study `checkpointing`: what recomputing activations saves in memory, costs in time, lets fit.

Nothing recomputed, every √L-th block's input kept, every block's, and selectively (the results of
matmuls and attention kept): peak memory, step time and recomputed FLOPs of a train step; then the
largest batch and the longest sequence that fit a memory limit.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Literal, get_args

import msgspec

from peakward.prediction.flops import recomputed_flops, step_flops
from peakward.records.case import Checkpointing, ModelCase, Precision
from peakward.records.measurement import Measurement
from peakward.records.memory import MemoryPhase
from peakward.records.model_shape import ModelShape
from peakward.records.study import Conclusion
from peakward.report.format import format_cell
from peakward.studies import readings as read
from peakward.studies import values
from peakward.studies.cases import model_case, place, with_levers, with_work
from peakward.studies.claims import Sentence, extremes, listed, pairs, speeds
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.fits import MIB, limit_notes, limits, probe
from peakward.studies.peaks import phase_of, predicted_peak
from peakward.studies.readings import Planned, Readings, peak_bytes, ratio
from peakward.studies.recorder import Recorder
from peakward.studies.search import Bracket, largest, linear_guess
from peakward.studies.setting import Setting
from peakward.studies.values import MEDIAN, PEAK, SIZE, STATUS, VERDICT, Value, plot, table, text

MODES: tuple[Checkpointing, ...] = get_args(Checkpointing)
PHASES: dict[MemoryPhase | None, str] = {
    "backward": "in the backward pass",
    "forward": "in the forward pass",
    "optimizer": "in the optimizer's step, which holds no activations",
    "build": "in the building of the model",
    None: "in a phase that is not known",
}
"""Where the peak of keeping everything lies, as a sentence says it."""
Axis = Literal["batch", "sequence"]
SEQUENCE_GRANULE = 64
MOST = {"batch": 2**16, "sequence": 2**20}
TOLERANCE = {"small": 1 / 3, "corners": 1 / 8, "full": 1 / 16}
"""How far apart the largest that fits and the smallest that does not may stay."""
BESIDE_BYTES = {"cuda": 512 * MIB, "cpu": 220 * MIB}
"""A GPU's context and kernels, or torch itself; for the first guess alone."""
SMALL_LIMITS_BYTES = (640 * MIB,)
"""A CPU's: `micro` at 15 × 128 fits it, and at about 38 × 128 with every block recomputed."""

Step = Point[ModelCase]
Answer = Callable[[Planned], Measurement | None]


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """One search: what grows, in which size and mode, under which limit."""

    shape: ModelShape
    axis: Axis
    mode: Checkpointing
    limit_bytes: int


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A search and its bracket, which holds as far as the probes have been run."""

    search: Search
    fixed: int
    """The sequence length of a search for the batch, and the other way round."""
    bracket: Bracket
    none: Bracket | None = None
    """The bracket of the same search with everything kept."""

    @property
    def what(self) -> str:
        """Names what grew: "batch at sequence 512", "sequence at batch 4"."""
        axis = self.search.axis
        return f"{axis} at {'sequence' if axis == 'batch' else 'batch'} {self.fixed}"


def points(setting: Setting) -> Iterator[Step]:
    """Size × sequence × mode, each held against keeping everything."""
    protocol, grid = setting.protocol(phases=False), setting.grid
    for shape, seq_len, mode in product(grid.models, grid.seq_lens, MODES):
        step = case(setting, shape, seq_len, mode)
        base = (with_levers(step, checkpointing="none"), protocol)
        yield Point(case=step, protocol=protocol, name=mode, base=base)


def case(
    setting: Setting,
    shape: ModelShape,
    seq_len: int,
    mode: Checkpointing,
    in_precision: Precision | None = None,
) -> ModelCase:
    """A train step as one would train here: flash attention, and bf16-mixed on a GPU that has it."""
    return model_case(
        shape,
        setting.grid.batch_size,
        seq_len,
        "train_step",
        setting.device,
        precision=in_precision or precision(setting),
        attention="sdpa",
        checkpointing=mode,
    )


def precision(setting: Setting) -> Precision:
    """The user's first choice, or bf16-mixed where the device is a GPU that has it, or fp32."""
    if setting.scope.precisions:
        return setting.scope.precisions[0]
    grid = setting.grid
    wanted = case(setting, grid.models[0], grid.seq_lens[0], "none", "bf16-mixed")
    has_it = setting.device == "cuda" and setting.obstacle(wanted) is None
    return "bf16-mixed" if has_it else "fp32"


def searches(setting: Setting) -> tuple[Search, ...]:
    """Size × limit × axis × mode; below `full` the first size and limit, and the two ends."""
    whole = setting.scope.name == "full"
    n = None if whole else 1
    modes: tuple[Checkpointing, ...] = MODES if whole else ("none", "every-block")
    bounds = limits(setting, SMALL_LIMITS_BYTES)[:n]
    return tuple(
        Search(shape=shape, axis=axis, mode=mode, limit_bytes=limit)
        for shape, limit, axis, mode in product(
            setting.grid.models[:n], bounds, get_args(Axis), modes
        )
    )


def gather(lab: Recorder, setting: Setting) -> None:
    """Carry out the searches; every probe is a measurement of its own."""
    for each in searches(setting):
        find(each, lab.readings, setting, lab.measure)


def found(readings: Readings, setting: Setting) -> tuple[Found, ...]:
    """The searches as far as the probes on record take them."""
    told = [find(each, readings, setting, readings.find) for each in searches(setting)]
    brackets = {each.search: each.bracket for each in told}
    return tuple(
        msgspec.structs.replace(
            each, none=brackets.get(msgspec.structs.replace(each.search, mode="none"))
        )
        for each in told
    )


def find(search: Search, readings: Readings, setting: Setting, answer: Answer) -> Found:
    """Search; `answer` measures a probe, or looks it up."""
    grid = setting.grid
    fixed = max(grid.seq_lens) if search.axis == "batch" else grid.batch_size
    granule = 1 if search.axis == "batch" else SEQUENCE_GRANULE
    # A learned position table ends; computed positions do not.
    ends = search.axis == "sequence" and search.shape.positions == "learned"
    bracket = largest(
        lambda value: answer(probe(_at(search, value, setting), search.limit_bytes, setting)),
        guess=_guess(search, fixed, readings, setting),
        granule=granule,
        upper=search.shape.max_seq_len if ends else MOST[search.axis],
        tolerance=TOLERANCE[setting.scope.name],
    )
    return Found(search=search, fixed=fixed, bracket=bracket)


def _at(search: Search, value: int, setting: Setting) -> ModelCase:
    """The case with `value` sequences, or sequences of `value` tokens."""
    if search.axis == "batch":
        longest = case(setting, search.shape, max(setting.grid.seq_lens), search.mode)
        return with_work(longest, batch_size=value)
    length = max(search.shape.max_seq_len, value)
    shape = msgspec.structs.replace(search.shape, max_seq_len=length)
    return case(setting, shape, value, search.mode)


def _guess(search: Search, fixed: int, readings: Readings, setting: Setting) -> int:
    """By the grid's peaks, taken as linear in the tokens; else twice the grid's own largest."""
    protocol = setting.protocol(phases=False)
    cases = [case(setting, search.shape, seq_len, search.mode) for seq_len in setting.grid.seq_lens]
    points = [
        (float(each.workload.tokens_per_step), float(peak))
        for each in cases
        if (peak := peak_bytes(readings.find((each, protocol)))) is not None
    ]
    tokens = linear_guess(points, search.limit_bytes - BESIDE_BYTES[setting.device])
    if tokens is None:
        tokens = 2.0 * setting.grid.batch_size * max(setting.grid.seq_lens)
    return max(1, int(tokens / fixed))


def recomputed(row: Row[Step]) -> float:
    """Returns the FLOPs a step that the mode computes again."""
    return recomputed_flops(row.point.case)


def recomputed_share(row: Row[Step]) -> float | None:
    """Returns the FLOPs computed again as a share of the model FLOPs of the step."""
    return ratio(recomputed(row), step_flops(row.point.case))


def costs(view: View[Step]) -> Iterator[Conclusion]:
    """Says what each mode saves, by where keeping everything has its peak; what it costs and computes again;
    and the cases for which keeping everything runs out of memory.

    No share over several phases: recomputation frees activations, and lowers no peak that has none.
    """
    for rows in values.groups(view.rows, lambda row: row.name)[1:]:
        mode = rows[0].name
        for phase, where in PHASES.items():
            yield from extremes(
                f"{mode} holds",
                PEAK_SHARE,
                [row for row in rows if phase_of(row.base) == phase],
                of=f"of none's peak memory, where that lies {where}",
                behind=lambda row: row.both,
            )
        yield from speeds(rows, mode, "none")
        ran = [row for row in rows if row.speed]
        yield from extremes(f"{mode} recomputes", RECOMPUTED, ran, of="of the model's FLOPs")
        rescued = [row for row in rows if (read.status(row.base), row.status) == ("oom", "ok")]
        if rescued:
            told = Sentence()
            n = told.count("cases only with it", len(rescued), pairs(rescued))
            yield from told.end(f"{mode} runs in cases for which none runs out of memory: {n}.")


def reaches(view: View[Step]) -> Iterator[Conclusion]:
    """How far each mode goes under a limit, beside keeping everything.

    Of searches that came to their end: where a probe timed out or crashed, the largest is unknown.
    """
    for each in found(view.readings, view.setting):
        none, own = each.none, each.bracket
        if own.stopped is None and own.fits and none is not None and none.stopped is None:
            limit, shape = format_cell(each.search.limit_bytes, "bytes"), each.search.shape
            yield from listed(
                f"Under {limit} the largest {each.what} of {shape.name} with {each.search.mode}",
                (FITS, FITS_NOT, AT_LEAST),
                each,
                *own.proofs,
                *none.proofs,
            )


PEAK_SHARE = Value("of none's", "share", lambda row: row.peak_share)
RECOMPUTED = Value("of the model's FLOPs", "share", recomputed_share)
FITS = Value("fits", "count", lambda each: each.bracket.fits or None)
FITS_NOT = Value("does not fit", "count", lambda each: each.bracket.too_large)
AT_LEAST = Value(
    "over none's, at least",
    "ratio",
    # What fits over what does not fit with everything kept: the true factor is larger.
    lambda each: (
        ratio(each.bracket.fits, each.none.fits and each.none.too_large)
        if each.search.mode != "none"
        else None
    ),
)
STUDY = Study(
    title="What does recomputation save, cost, and let fit?",
    points=points,
    search=gather,
    tables=(
        table(
            "Memory and time by what is recomputed",
            (
                *SIZE,
                text("checkpointing", lambda row: row.name),
                STATUS,
                PEAK,
                PEAK_SHARE,
                text("peak lies in", lambda row: phase_of(row.measurement)),
                Value("predicted peak", "bytes", lambda row: predicted_peak(row.point.case)),
                MEDIAN,
                Value("over none's", "ratio", lambda row: row.over_base),
                Value("recomputed", "flops", recomputed),
                RECOMPUTED,
                VERDICT,
            ),
            note="The phase of the peak is that of the predicted one, told where the two are within 5%. On a "
            "CPU what is measured is the process, whose peak is not predicted.",
        ),
        table(
            "The largest batch and the longest sequence that fit",
            (
                text("model", lambda each: each.search.shape.name),
                Value("limit", "bytes", lambda each: each.search.limit_bytes),
                text("largest", lambda each: each.what),
                text("checkpointing", lambda each: each.search.mode),
                FITS,
                FITS_NOT,
                Value(
                    "over none's",
                    "ratio",
                    lambda each: ratio(each.bracket.fits or None, each.none and each.none.fits),
                ),
                text(
                    "search",
                    lambda each: (
                        f"ended by: {each.bracket.stopped}" if each.bracket.stopped else "complete"
                    ),
                ),
            ),
            lambda view: found(view.readings, view.setting),
            note="Two whole train steps ran at the value that fits and did not at the one that does not.",
        ),
    ),
    plots=(
        plot(
            "Peak memory against step time",
            Value("step time", "s", lambda row: row.median_s),
            PEAK,
            lambda row: place(row.point.case),
            lambda view: sorted(view.rows, key=lambda row: row.median_s or 0.0),
            names=lambda row: row.name,
            log="xy",
        ),
    ),
    claims=(costs, reaches),
    notes=lambda view: (
        f"Train steps in {precision(view.setting)} with torch's scaled_dot_product_attention.",
        *limit_notes(view.setting, SMALL_LIMITS_BYTES),
    ),
)
