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
    "activations",
    "temporaries",
]
"""`workspace` is cuBLAS's. `activations`: made in the forward pass or by its recomputation, and let go
in the backward pass outside of any module. `temporaries`: all else."""


class HeldTensors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a case's own tensors of one kind lie at one moment."""

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
