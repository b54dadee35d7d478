"""What a case's memory was held for, recorded over a step: by category, phase and module."""

from typing import Literal

import msgspec

from peakward.records.case import ModelCase
from peakward.records.measurement import Phase
from peakward.records.memory_snapshot import MemoryShare

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
"""`workspace` is cuBLAS's. `weight_casts`: copies of parameters in the type that autocast computes in; of
compiled code, and in records from before they were told apart, they are among the activations.
`activations`: made in the forward pass or by its recomputation, and let go in the backward pass outside
of any module. `temporaries`: all else."""


class HeldTensors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a case's own tensors of one kind, or a copy of one, lie at one moment."""

    purpose: Purpose
    at: int
    """Allocations and frees until then."""
    addresses: tuple[int, ...]
    """Of their storages, each once."""


class MemoryMarks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker knows of a recording that the allocator does not. Moments are numbers of
    allocations and frees since the recording began, and so are exact."""

    begin: int
    """Of the last step."""
    end: int
    """Of the last step."""
    phases: tuple[tuple[int, Phase], ...]
    """Where each phase of each step begins."""
    modules: tuple[tuple[int, str], ...]
    """From where on which module is the innermost that runs; "" is none."""
    held: tuple[HeldTensors, ...]
    cleared: tuple[int, int]
    """Between the two cuBLAS's workspaces were let go, and nothing else."""
    peak_allocated_bytes: int | None
    """By torch's own count, from the case's building on; None on a CPU, where it keeps none."""
    traced: tuple[int, int] | None = None
    """Between the two torch's profiler was told of every one as well; None on a CPU."""


class PhasePeak(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first moment of a phase at which the most is allocated."""

    phase: Phase
    event: int
    """Allocations and frees since the step began."""
    allocated_bytes: int
    purposes: tuple[MemoryShare, ...]
    """The greatest first; they add up to `allocated_bytes`."""


class HeldPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a stretch of the step the moment at which the most is allocated."""

    event: int
    n_bytes: tuple[int, ...]
    """In the order of `CaseMemory.purposes`."""


class ModuleActivations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Activations that one module made in a step."""

    module: str
    """Its path, the innermost that ran; "" outside of all, and of compiled code."""
    n: int
    n_bytes: int


class LargeAllocations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Allocations of one size that one place made."""

    n_bytes: int
    """Of each."""
    n: int
    purpose: Purpose
    made_in: str
    """The phase, or `build`."""
    part: str
    """The module that ran, with * for the number of its block; "" is none."""
    source: str | None
    """The line of the program; None where no stack was recorded: on a CPU, and on the threads of the
    backward pass."""


class PeakMoment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What host and device were at as a phase reached its peak."""

    phase: Phase
    at_s: float
    """Since the step began, on the host."""
    operator: str | None
    """That the host was in: the innermost that computes; None outside of all."""
    kernel: str | None
    """That the device ran; None where it was idle."""
    category: str | None
    """The kernel's."""
    queued_s: float | None
    """From the kernel's launch to its start; None where its launch is not known."""
    host_ahead_s: float
    """Until all that was launched before had run: 0 of a device that had nothing left to do."""


class KernelPhase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From the first start to the last end of what a phase launched, since the step began."""

    phase: Phase
    begin_s: float
    end_s: float


class StepClock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The recorded step on the clock of its kernels. Host and device ran under torch's profiler and
    with the stack of every allocation taken: slower than a step that is timed."""

    trace: str
    """The name of the trace's file beside the database."""
    times_s: tuple[float, ...]
    """Of each point of `CaseMemory.timeline`, since the step began."""
    peaks: tuple[PeakMoment, ...]
    """As `CaseMemory.phases`."""
    kernels: tuple[KernelPhase, ...]


class CaseMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One recorded step of a case, the second: the first that finds the optimiser's state."""

    id: str
    case: ModelCase
    environment_key: str
    snapshot: str
    """The name of the snapshot's file beside the database."""
    peak_bytes: int
    """The most that was allocated from the case's building on, by the recorded events."""
    counted_peak_bytes: int | None
    """The same by torch's own count; None on a CPU."""
    reserved_bytes: int | None
    """The most that the allocator held; None on a CPU."""
    phases: tuple[PhasePeak, ...]
    purposes: tuple[Purpose, ...]
    timeline: tuple[HeldPoint, ...]
    modules: tuple[ModuleActivations, ...]
    """In the order of their first."""
    largest: tuple[LargeAllocations, ...]
    clock: StepClock | None = None
    """None on a CPU, where it was not joined, and in records from before it was taken."""
    not_joined: str | None = None
    """Why the allocator's history and the trace of the same step on a GPU do not agree."""
