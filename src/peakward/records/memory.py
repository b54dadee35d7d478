"""How much memory a case will need at most, and for what."""

from typing import Literal

import msgspec

from peakward.records.case import Case

MemoryPhase = Literal["build", "forward", "backward", "optimizer"]
MemoryBasis = Literal["step", "eager step"]


class MemorySplit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What memory is held for at one moment. Each figure is what the tensors ask for; what the
    allocator gives beyond that is `rounding_bytes`."""

    parameters_bytes: int = 0
    gradients_bytes: int = 0
    optimizer_state_bytes: int = 0
    activations_bytes: int = 0
    """Results of the forward pass that wait for the backward pass, recomputed ones included."""
    logits_bytes: int = 0
    """Logits, log-likelihoods, and the gradients of both."""
    weight_casts_bytes: int = 0
    """Weights in the type that autocast computes in, kept from forward to backward."""
    temporaries_bytes: int = 0
    """All else that a pass or the optimiser holds for a while."""
    inputs_bytes: int = 0
    """Token ids and targets of the steps to come."""
    cache_bytes: int = 0
    """Keys and values that `prefill` and `decode` keep."""
    workspace_bytes: int = 0
    """cuBLAS's."""
    rounding_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """The allocator's allocated bytes."""
        return sum(msgspec.structs.astuple(self))


class MemoryPrediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case's peak memory, made before it is run."""

    case: Case
    phase: MemoryPhase
    """In which the peak is; `build` is before the first step."""
    peak: MemorySplit
    """At the first moment at which the most is allocated."""
    reserved_bytes: int | None
    """The most that the allocator holds at any time, free blocks included, where nothing limits it.
    None: not computed, for a CUDA graph, which has a pool of its own, and for code that is compiled in
    a way that is not known."""
    context_bytes: int
    """Beside the allocator: the CUDA context, loaded kernels, library handles."""
    basis: MemoryBasis = "step"
    """`eager step`: the case is compiled in a way that is not known, and the figures are of the same case
    uncompiled."""

    @property
    def peak_bytes(self) -> int:
        """To compare with a measurement's `peak_allocated_bytes`."""
        return self.peak.total_bytes

    @property
    def device_bytes(self) -> int | None:
        """What the process takes of the device: reserved bytes and context."""
        return None if self.reserved_bytes is None else self.reserved_bytes + self.context_bytes
