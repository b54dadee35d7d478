"""The largest batch and the longest sequence that fit a memory limit, by what is recomputed."""

from collections.abc import Callable
from typing import Literal, get_args

import msgspec

from peakward.records.case import Checkpointing, ModelCase, Precision
from peakward.records.measurement import Measurement
from peakward.records.model_shape import ModelShape
from peakward.studies.cases import model_case, with_work
from peakward.studies.fits import MIB, limits, probe
from peakward.studies.readings import Planned, Readings, peak_bytes
from peakward.studies.recorder import Recorder
from peakward.studies.search import Bracket, largest, linear_guess
from peakward.studies.setting import Setting

MODES: tuple[Checkpointing, ...] = get_args(Checkpointing)
Axis = Literal["batch", "sequence"]
AXES: tuple[Axis, ...] = ("batch", "sequence")
SEQUENCE_GRANULE = 64
MOST = {"batch": 2**16, "sequence": 2**20}
TOLERANCE = {"small": 1 / 3, "corners": 1 / 8, "full": 1 / 16}
"""How far apart the largest that fits and the smallest that does not may stay."""
BESIDE_BYTES = {"cuda": 512 * MIB, "cpu": 220 * MIB}
"""A GPU's context and kernels, or torch itself; for the first guess alone."""
SMALL_LIMITS_BYTES = (640 * MIB,)
"""A CPU's: `micro` at 15 × 128 fits it, and at about 38 × 128 with every block recomputed."""

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
    modes: tuple[Checkpointing, ...] = MODES if whole else ("none", "every-block")
    shapes = setting.grid.models
    bounds = limits(setting, SMALL_LIMITS_BYTES)
    return tuple(
        Search(shape=shape, axis=axis, mode=mode, limit_bytes=limit)
        for shape in (shapes if whole else shapes[:1])
        for limit in (bounds if whole else bounds[:1])
        for axis in AXES
        for mode in modes
    )


def gather(lab: Recorder, setting: Setting) -> None:
    """Carry out the searches; every probe is a measurement of its own."""
    for each in searches(setting):
        find(each, lab.readings, setting, lab.measure)


def found(readings: Readings, setting: Setting) -> tuple[Found, ...]:
    """The searches as far as the probes on record take them."""
    return tuple(find(each, readings, setting, readings.find) for each in searches(setting))


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
