"""The predicted peak memory of a case, by category."""

from typing import Literal

import msgspec

from peakward.records.case import Case

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
