"""What was measured when a case ran."""

import re
from typing import Literal

import msgspec

from peakward.records.case import Case
from peakward.records.environment import Environment
from peakward.records.feeding import Feeding, LoaderWait
from peakward.records.protocol import Protocol
from peakward.records.result import Result

Status = Literal["ok", "oom", "timeout", "crashed", "invalid"]
EndedBy = Literal["case", "outside", "user"]
"""Who ended a case: itself, whatever its status; something outside of it, which took its worker away or its
source (a kill, a machine that could not start a worker); or the user, by Ctrl-C."""
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
    """With a bootstrap percentile interval; over per-process medians where several processes ran."""
    mean_s: float
    sd_s: float
    """Sample standard deviation; 0 for a single step."""
    min_s: float
    n: int


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The step times that one process gave, in the order they ran."""

    warmup_s: tuple[float, ...]
    steps_s: tuple[float, ...]


class PhaseTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One phase of a step, timed on the device, summed over micro-batches."""

    phase: Phase
    median_s: float
    n: int


class Validity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the times may be believed, and why not."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()
    """Each with its number: "coefficient of variation 12% > 5%"."""


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Peak memory of a measurement.

    On CUDA, the allocator's maxima and what the context holds beside them; on a CPU `allocated`
    is the growth of the process's resident memory over what it was before the model was built,
    and the other two are None.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int | None = None
    context_bytes: int | None = None
    held_for_backward_bytes: int | None = None
    """What an operator's forward pass leaves allocated for its backward pass, its result included and
    its inputs not: by the allocator on CUDA, by what autograd saved on a CPU. None where no gradient
    is computed, and of a model."""


class Telemetry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The device's own sensors over the timed steps. None where it has no such sensor."""

    sm_clock_mhz: Interval | None = None
    """Mean, lowest and highest sample (level 1)."""
    power_w: Interval | None = None
    temperature_c: Interval | None = None
    energy_per_step_j: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    n_samples: int = 0
    """Behind the first three and the reasons; 0 where the steps took under 0.1 s, or where the
    sensors' process failed."""


class CompileReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What torch.compile did while the case warmed up."""

    compile_s: float
    """Warm-up time beyond what as many steady steps take."""
    n_graphs: int
    n_graph_breaks: int
    n_recompiles: int
    reasons: tuple[str, ...] = ()
    """Of the breaks and recompilations, each once."""
    n_cached_graphs: int = 0
    """Forward and backward graphs whose code came from the compiler's disk cache: then `compile_s`
    is not the time of a first compilation."""


class FirstStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the first step of a fresh process did beyond a steady one, in parts that share no moment.

    Read from a profiled process of its own. A part is None where this device has no such activity, or
    where the record is from before it was told.
    """

    profiled_s: float
    profiled_steady_s: float | None = None
    """A later step of the same process under the profiler."""
    module_load_s: float | None = None
    """Host time in CUDA calls that load kernels, while the GPU had nothing to do: module loading, and
    launches beyond their steady time."""
    allocation_s: float | None = None
    """Host time in cudaMalloc and its kin, likewise."""
    products_s: float | None = None
    """Host time in operators of matrix products outside of CUDA calls, likewise: cuBLAS makes its handle
    and asks its heuristics for kernels."""
    compile_s: float | None = None
    """Compilation by torch.compile or Triton, autotuning left out."""
    autotune_s: float | None = None
    """Timing of candidates by Inductor's and Triton's autotuning."""
    n_device_allocations: int | None = None
    n_page_faults: int | None = None


class PieceWork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one step of a `MicroCase` computes and moves, and how near it comes to fp64."""

    flops: int
    """By the formula of its subject; however the piece goes about it."""
    input_bytes: int
    """Of the elements that the inputs have in memory."""
    least_bytes: int
    """Every input read once and the result written once."""
    moved_bytes: int | None
    """Read and written by the operators that torch dispatched, or the kernels that its compiler made,
    whether found in a cache or not. None where neither of them runs the piece."""
    counted_by: Literal["operators", "compiler"] | None
    result: Literal["new", "view", "refused"]
    """`view`: it begins in the memory of an input. `refused`: torch raised an error in its place."""
    allocated_bytes: int
    """Of memory that the result holds and no input does."""
    difference: float | None
    """From fp64 on the same inputs: the largest over the largest value. None where refused."""


class Outputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the last step of a pass without a loss gave, looked at after all was timed."""

    n_values: int
    n_nonfinite: int
    """NaN or infinite."""
    repeats: bool
    """Whether one more step on the same inputs gave the same values to the bit."""

    @property
    def troubles(self) -> tuple[str, ...]:
        """What a reader must know of them; nothing where all is well."""
        found = []
        if self.n_nonfinite:
            share = self.n_nonfinite / self.n_values
            some = f"{share:.3g}" if share < 0.001 else f"{share:.1%}"
            found.append(f"{some} of the output's values are NaN or infinite")
        # NaN compares by its bits too, so that this says something of its own.
        if not self.repeats:
            found.append("the output changes from call to call on the same input")
        return tuple(found)


class Measurement(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case, how it was measured and where, and what came of it."""

    id: str
    case: Case
    protocol: Protocol
    environment: Environment
    started_at: str
    """ISO 8601, UTC."""
    wall_s: float
    """The whole measurement, process start and model building included."""
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
    first_step: FirstStep | None = None
    n_parameters: int | None = None
    """Counted on the instantiated model."""
    piece: PieceWork | None = None
    """Of a `MicroCase`."""
    feeding: Feeding | None = None
    """Of a case with `Workload.data`."""
    loader: LoaderWait | None = None
    """Of a live step with a loader of the user's."""
    loss: float | None = None
    """After the last timed step: finite, or the case is `invalid`. None for `forward`."""
    outputs: Outputs | None = None
    """Of a pass of a model without a loss; None where it was stored before this was kept."""
    ended_by: EndedBy | None = None
    """None where it was stored before this was kept."""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self._ended_by == "user"

    @property
    def final(self) -> bool:
        """Whether the case itself ended it, so that measuring it again would tell the same."""
        return self._ended_by == "case"

    @property
    def _ended_by(self) -> EndedBy:
        return self.ended_by or _read_from(self.reason or "")


_OUTSIDE = re.compile(r"killed by SIG(KILL|TERM|HUP) while|killed by the kernel|.* while starting")


def _read_from(reason: str) -> EndedBy:
    """Who ended a case, by how its reason was worded until it was kept (November 2026)."""
    if reason.startswith("interrupted"):
        return "user"
    return "outside" if _OUTSIDE.match(reason) else "case"
