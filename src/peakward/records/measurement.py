"""Measurements: results of running a case, with their protocol and their environment."""

import re
from typing import Literal

import msgspec

from peakward.records.case import Case
from peakward.records.environment import Environment as Environment  # noqa: PLC0414
from peakward.records.linear_layers import LinearChoice
from peakward.records.numerics import Numerics
from peakward.records.parallel import LinkCalibration, RanksWork
from peakward.records.result import Result

TIMEOUT_S = 600.0


class Protocol(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Warm-up, number of steps and limits of one measurement."""

    warmup_steps: int | None = None
    """Steps before the timed ones. None: until a test finds the step time steady."""
    min_steps: int = 10
    max_steps: int = 200
    max_timed_s: float = 5.0
    """No further step begins after this time, once `min_steps` are done."""
    relative_half_width: float = 0.005
    """Timing ends early once the median's 95% interval is this narrow. 0: never."""
    phases: bool = True
    """Time forward, backward and optimiser in separate steps, after the timed ones."""
    fresh_process: bool = False
    timeout_s: float = TIMEOUT_S
    """Wall time of the whole measurement, including model building and compilation."""

    @property
    def identity(self) -> "Protocol":
        """The protocol without its time-out. A time-out only ends a measurement: one that ended before it
        would have been the same under another time-out."""
        return msgspec.structs.replace(self, timeout_s=TIMEOUT_S)


class LoaderWait(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time that each timed step waited for its batches, in the order of the steps."""

    wait_s: tuple[float, ...]
    """The host's wait until the loader handed over the step's batches."""
    idle_s: tuple[float, ...] | None = None
    """The part of the wait in which the GPU had finished all earlier work; 0 where it was still busy. None on
    a CPU, which waits itself."""
    first_wait_s: float
    """The wait for the very first batches: workers start, and nothing is ready."""


class Feeding(LoaderWait, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The text that a loader read, and the time that each timed step spent on feeding."""

    copy_s: tuple[float, ...]
    """The host's time to copy the batches to the device. A blocking copy also waits for the device's earlier
    work."""
    text_bytes: int
    """UTF-8."""
    text_digest: str
    n_tokens: int
    """Tokens in the whole text, including the separator after each document."""
    vocab_size: int
    """The tokenizer's vocabulary; the model's may be larger."""
    n_sequences: int
    """Sequences in the whole text."""
    n_rank_sequences: int
    """Sequences that rank 0 reads in an epoch."""
    n_shared_sequences: int
    """Sequences that rank 0 reads in the first epoch and another rank reads too."""


Status = Literal["ok", "oom", "timeout", "crashed", "invalid"]
EndedBy = Literal["case", "outside", "user"]
"""Who ended a case. `case`: the case itself, whatever its status. `outside`: something took its worker or its
source away (a kill, a machine that could not start a worker). `user`: Ctrl-C."""
Verdict = Literal["stable", "unstable", "throttled"]
Phase = Literal["forward", "backward", "optimizer"]


class Interval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An estimate and its confidence interval."""

    estimate: float
    low: float
    high: float
    level: float = 0.95


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Statistics of step times, in seconds."""

    median_s: Interval
    """The median with a bootstrap percentile interval. Where several processes ran, it is over their
    medians."""
    mean_s: float
    sd_s: float
    """Sample standard deviation; 0 for a single step."""
    min_s: float
    n: int


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The step times of one process, in the order they ran."""

    warmup_s: tuple[float, ...]
    steps_s: tuple[float, ...]


class PhaseTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One phase of a step, timed on the device and summed over micro-batches."""

    phase: Phase
    median_s: float
    n: int


class Validity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the times are reliable, and the reasons where they are not."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()
    """Each reason has its number: "coefficient of variation 12% > 5%"."""


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Peak memory of a measurement.

    On CUDA these are the allocator's maxima and the memory that the context holds beside them. On a CPU
    `allocated` is the growth of the process's resident memory since before the model was built, and the other
    two are None.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int | None = None
    context_bytes: int | None = None
    held_for_backward_bytes: int | None = None
    """Memory that an operator's forward pass leaves allocated for its backward pass: its result counts, its
    inputs do not. The allocator counts it on CUDA; on a CPU it is what autograd saved. None where no gradient
    is computed, and for a model."""


class Telemetry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Readings of the device's own sensors over the timed steps; None where a sensor does not exist."""

    sm_clock_mhz: Interval | None = None
    """The mean, the lowest and the highest sample (level 1)."""
    power_w: Interval | None = None
    temperature_c: Interval | None = None
    energy_per_step_j: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    n_samples: int = 0
    """Samples behind the first three fields and the reasons; 0 where the steps took under 0.1 s or the
    sensors' process failed."""


class CompileReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The work of torch.compile while the case warmed up."""

    compile_s: float
    """Warm-up time minus the time of as many steady steps."""
    n_graphs: int
    n_graph_breaks: int
    n_recompiles: int
    reasons: tuple[str, ...] = ()
    """The reasons for breaks and recompilations, each once."""
    n_cached_graphs: int = 0
    """Forward and backward graphs whose code came from the compiler's disk cache. Where there are any,
    `compile_s` is not the time of a first compilation."""


class FirstStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The extra work of a fresh process's first step beyond a steady step, in parts that do not overlap.

    It comes from a separate profiled process. A part is None where this device has no such activity, or in
    records older than the part.
    """

    profiled_s: float
    profiled_steady_s: float | None = None
    """A later step of the same process under the profiler."""
    module_load_s: float | None = None
    """Host time in CUDA calls that load kernels while the GPU had nothing to do: module loading, and launches
    beyond their steady time."""
    allocation_s: float | None = None
    """Host time in cudaMalloc and similar calls while the GPU had nothing to do."""
    products_s: float | None = None
    """Host time in operators of matrix products, outside CUDA calls, while the GPU had nothing to do: cuBLAS
    creates its handle and asks its heuristics for kernels."""
    compile_s: float | None = None
    """Compilation by torch.compile or Triton, without autotuning."""
    autotune_s: float | None = None
    """Time that Inductor's and Triton's autotuning spend on timing candidates."""
    n_device_allocations: int | None = None
    n_page_faults: int | None = None


class PieceWork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arithmetic and traffic of one step of a `MicroCase`, and its difference from fp64."""

    flops: int
    """FLOPs by the formula of the subject, however the piece computes it."""
    input_bytes: int
    """Bytes of the input elements in memory."""
    least_bytes: int
    """The minimum traffic: every input is read once and the result written once."""
    moved_bytes: int | None
    """Bytes read and written by the operators that torch dispatched, or by the kernels that its compiler made
    or found in its cache. None where neither runs the piece."""
    counted_by: Literal["operators", "compiler"] | None
    result: Literal["new", "view", "refused"]
    """`view`: the result begins in the memory of an input. `refused`: torch raised an error instead."""
    allocated_bytes: int
    """Bytes that the result holds and no input does."""
    difference: float | None
    """The largest difference from fp64 on the same inputs, over the largest value. None where refused,
    and where the result is not finite."""
    value: float | None = None
    """The result, where it is one finite number."""


class Speculated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Guesses of a `SpeculationCase`: how many were right, and what each part of a round takes.

    A step of the measurement is the decode of one text with guesses, until the text has ended. On a GPU
    results older than 2026-11-30 have one round more, which was made before the host knew of the end.
    """

    plain_s: tuple[float, ...]
    """The decode of each text without guesses, in turns with that with guesses."""
    accepted: tuple[int, ...]
    """The rounds in which 0, 1, … of the guessed tokens were accepted."""
    n_rounds: int
    n_equal: int
    """Texts with guesses that are token for token those without."""
    step_s: float
    """A step of the model for one token."""
    check_s: float
    """A pass of the model over the last token and those guessed, with the rule that judges them."""
    draft_s: float
    """A step of the draft for one token; 0 where the text itself is looked up."""
    draft_parameters: int
    """0 where the text itself is looked up."""


class Losses(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The loss at some positions of the text, in nats a token: cross-entropy with what the text has there."""

    where: str
    losses: tuple[float, ...]
    """The mean of each stretch of the text. Ways that are compared have the same stretches in the same
    order, so that their differences are paired."""


class Quality(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How well a model reads a text, and what it keeps of it."""

    losses: tuple[Losses, ...]
    kept_bytes: int | None = None
    """Keys and values of one sequence at its full length; None where none are kept."""
    weight_bytes: int | None = None
    """All weights: matrices of 8 or 4 bits with their scales in 16, the others in 16. None where they are not
    compared."""


class Outputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The output of the last step of a pass without a loss, checked after all timing."""

    n_values: int
    n_nonfinite: int
    """Values that are NaN or infinite."""
    repeats: bool
    """Whether one more step on the same inputs gave bitwise the same values."""

    @property
    def troubles(self) -> tuple[str, ...]:
        """Warnings about the outputs for the reader; empty where all is well."""
        found = []
        if self.n_nonfinite:
            share = self.n_nonfinite / self.n_values
            some = f"{share:.3g}" if share < 0.001 else f"{share:.1%}"
            found.append(f"{some} of the output's values are NaN or infinite")
        # NaN is compared by its bits too, so that this warning stays independent of the first.
        if not self.repeats:
            found.append("the output changes from call to call on the same input")
        return tuple(found)


class Measurement(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case, its protocol and environment, and the results."""

    id: str
    case: Case
    protocol: Protocol
    environment: Environment
    started_at: str
    """ISO 8601, UTC."""
    wall_s: float
    """Wall time of the whole measurement, including process start and model building."""
    status: Status
    reason: str | None = None
    """Why the status is not `ok`."""
    runs: tuple[Run, ...] = ()
    summary: Summary | None = None
    validity: Validity | None = None
    phases: tuple[PhaseTime, ...] = ()
    memory: MemoryUse | None = None
    telemetry: Telemetry | None = None
    compile: CompileReport | None = None
    linear: LinearChoice | None = None
    """Set for a user's module or live step under `fp8`."""
    first_step: FirstStep | None = None
    n_parameters: int | None = None
    """Parameters counted on the instantiated model."""
    piece: PieceWork | None = None
    """Set for a `MicroCase`."""
    speculated: Speculated | None = None
    """Set for a `SpeculationCase`."""
    collectives: LinkCalibration | None = None
    """Set for a `CollectivesCase`."""
    ranks: RanksWork | None = None
    """Set for a `LayoutCase`. Its step times are those of the slowest rank."""
    feeding: Feeding | None = None
    """Set for a case with `Workload.data`."""
    loader: LoaderWait | None = None
    """Set for a live step with the user's own loader."""
    loss: float | None = None
    """The loss after the last timed step. It is finite, or the case is `invalid`. None for `forward`."""
    quality: Quality | None = None
    """Set for a `QualityCase`, whose steps are each waited for."""
    numerics: Numerics | None = None
    """Set for a `NumericsCase`, which is one step."""
    outputs: Outputs | None = None
    """Set for a pass of a model without a loss; None in records older than this field."""
    ended_by: EndedBy | None = None
    """None in records older than this field."""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self._ended_by == "user"

    @property
    def told(self) -> str:
        """The status as a reader is told it: what Ctrl-C ended is stored as crashed, and did not crash."""
        return "interrupted" if self.interrupted else self.status

    @property
    def final(self) -> bool:
        """Whether the case itself ended it: a new measurement would give the same result."""
        return self._ended_by == "case"

    @property
    def _ended_by(self) -> EndedBy:
        return self.ended_by or _read_from(self.reason or "")


_OUTSIDE = re.compile(r"killed by SIG(KILL|TERM|HUP) while|killed by the kernel|.* while starting")


def _read_from(reason: str) -> EndedBy:
    """Who ended a case, by the wording of reasons in records older than `ended_by` (November 2026)."""
    if reason.startswith("interrupted"):
        return "user"
    return "outside" if _OUTSIDE.match(reason) else "case"
