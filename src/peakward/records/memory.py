"""The memory of a case: predicted by category, and recorded by category, phase and module."""

from typing import Literal

import msgspec

from peakward.records.case import Case, ModelCase
from peakward.records.measurement import Phase
from peakward.records.memory_snapshot import MemoryShare

MemoryPhase = Literal["build", "forward", "backward", "optimizer"]
MemoryBasis = Literal["step", "eager step"]


class MemorySplit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Allocated memory at one moment, by purpose. Each figure is the size that the tensors request;
    `rounding_bytes` is what the allocator adds."""

    parameters_bytes: int = 0
    gradients_bytes: int = 0
    optimizer_state_bytes: int = 0
    activations_bytes: int = 0
    """Results of the forward pass that the backward pass needs, including recomputed ones."""
    logits_bytes: int = 0
    """Logits, log-likelihoods, and the gradients of both."""
    weight_casts_bytes: int = 0
    """Weights in autocast's compute type, kept from forward to backward."""
    temporaries_bytes: int = 0
    """Everything else that a pass or the optimiser holds for a while."""
    inputs_bytes: int = 0
    """Token ids and targets of the coming steps."""
    cache_bytes: int = 0
    """Keys and values that `prefill` and `decode` keep."""
    workspace_bytes: int = 0
    """The workspaces of cuBLAS."""
    rounding_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """The allocator's allocated bytes."""
        return sum(msgspec.structs.astuple(self))


class MemoryPrediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The peak memory of a case, predicted before it runs."""

    case: Case
    phase: MemoryPhase
    """The phase of the peak; `build` is before the first step."""
    peak: MemorySplit
    """The split at the first moment of the most allocated bytes."""
    reserved_bytes: int | None
    """The most bytes that the allocator holds, including free blocks, where nothing limits it. None where it
    is not computed: for a CUDA graph, which has its own pool, and for code whose compilation is not modelled.
    """
    context_bytes: int
    """Memory beside the allocator: the CUDA context, loaded kernels, library handles."""
    basis: MemoryBasis = "step"
    """`eager step`: the compilation of this case is not modelled, and the figures are those of the same case
    uncompiled."""

    @property
    def peak_bytes(self) -> int:
        """To compare with a measurement's `peak_allocated_bytes`."""
        return self.peak.total_bytes

    @property
    def device_bytes(self) -> int | None:
        """The process's whole memory on the device: reserved bytes and context."""
        return None if self.reserved_bytes is None else self.reserved_bytes + self.context_bytes


Purpose = Literal[
    "parameters",
    "gradients",
    "optimizer_state",
    "inputs",
    "cache",
    "workspace",
    "weight_casts",
    "activations",
    "temporaries",
]
"""Why memory was held. `workspace` is cuBLAS's. `weight_casts` are copies of parameters in autocast's compute
type; in compiled code and in older records they count as activations. `activations` are made in the forward
pass or by its recomputation, and freed in the backward pass outside any module. `temporaries` are everything
else."""


class HeldTensors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The addresses of a case's own tensors of one kind, or of their copies, at one moment."""

    purpose: Purpose
    at: int
    """Allocations and frees before this moment."""
    addresses: tuple[int, ...]
    """The addresses of their storages, each once."""


class MemoryMarks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Moments and addresses that only the worker knows, not the allocator. A moment is the exact number of
    allocations and frees since the recording began."""

    begin: int
    """The start of the last step."""
    end: int
    """The end of the last step."""
    phases: tuple[tuple[int, Phase], ...]
    """The start of each phase of each step."""
    modules: tuple[tuple[int, str], ...]
    """Each change of the innermost running module; "" where none runs."""
    held: tuple[HeldTensors, ...]
    cleared: tuple[int, int]
    """The interval in which the workspaces of cuBLAS were freed, and nothing else."""
    peak_allocated_bytes: int | None
    """Torch's own count since the case was built. None on a CPU, where torch keeps no count."""
    traced: tuple[int, int] | None = None
    """The interval in which torch's profiler recorded every allocation too. None on a CPU."""


class PhasePeak(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first moment of a phase at which the most is allocated."""

    phase: Phase
    event: int
    """Allocations and frees since the step began."""
    allocated_bytes: int
    purposes: tuple[MemoryShare, ...]
    """The largest first. They add up to `allocated_bytes`."""


class HeldPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The highest moment of a stretch of the step: the one with the most allocated bytes."""

    event: int
    n_bytes: tuple[int, ...]
    """One value for each entry of `CaseMemory.purposes`, in its order."""


class ModuleActivations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Activations that one module made in a step."""

    module: str
    """The path of the innermost module that ran; "" outside all modules and in compiled code."""
    n: int
    n_bytes: int


class LargeAllocations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Allocations of one size that one place made."""

    n_bytes: int
    """The size of each allocation."""
    n: int
    purpose: Purpose
    made_in: str
    """The phase, or `build`."""
    part: str
    """The module that ran, with * for its block's number; "" where none ran."""
    source: str | None
    """The line of the program. None where no stack was recorded: on a CPU, and on the threads of the backward
    pass."""


class PeakMoment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The work of host and device as a phase reached its peak."""

    phase: Phase
    at_s: float
    """Time on the host since the step began."""
    operator: str | None
    """The innermost computing operator on the host; None outside all operators."""
    kernel: str | None
    """The kernel that the device ran; None where it was idle."""
    category: str | None
    """The category of the kernel."""
    queued_s: float | None
    """Time from the kernel's launch to its start; None where its launch is not known."""
    host_ahead_s: float
    """Time until the device had finished all work launched before; 0 where it had nothing left to do."""


class KernelPhase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The span from the first start to the last end of a phase's kernels, since the step began."""

    phase: Phase
    begin_s: float
    end_s: float


class StepClock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The recorded step on the clock of its kernels. Torch's profiler ran and recorded the stack of every
    allocation, so the step is slower than a timed one."""

    trace: str
    """The name of the trace's file beside the database."""
    times_s: tuple[float, ...]
    """The time of each point of `CaseMemory.timeline`, since the step began."""
    peaks: tuple[PeakMoment, ...]
    """One for each of `CaseMemory.phases`, in their order."""
    kernels: tuple[KernelPhase, ...]


class CaseMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One recorded step of a case: the second one, the first in which the optimiser's state already
    exists."""

    id: str
    case: ModelCase
    environment_key: str
    snapshot: str
    """The name of the snapshot's file beside the database."""
    peak_bytes: int
    """The most bytes allocated at once since the case was built, by the recorded events."""
    counted_peak_bytes: int | None
    """The same peak by torch's own count; None on a CPU."""
    reserved_bytes: int | None
    """The most bytes that the allocator held; None on a CPU."""
    phases: tuple[PhasePeak, ...]
    purposes: tuple[Purpose, ...]
    timeline: tuple[HeldPoint, ...]
    modules: tuple[ModuleActivations, ...]
    """In the order of their first activation."""
    largest: tuple[LargeAllocations, ...]
    clock: StepClock | None = None
    """None on a CPU, where the clocks were not joined, and in records older than this field."""
    not_joined: str | None = None
    """Why the allocator's history and the GPU trace of the same step do not agree."""
