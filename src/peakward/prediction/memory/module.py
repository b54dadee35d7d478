"""The peak memory of a captured module, tensor by tensor through the allocator."""

from collections.abc import Sequence

from peakward.prediction.memory.peak import CONTEXT_BYTES
from peakward.prediction.memory.replay import replay
from peakward.prediction.memory.timeline import Tensor
from peakward.prediction.memory.workspace import WORKSPACE_BYTES
from peakward.records.memory import MemoryPhase, MemoryPrediction
from peakward.records.op_graph import ModuleCapture


class CapturedTensors:
    """A capture's tensors as `replay` takes them, and cuBLAS's workspaces, one for the thread of the
    forward pass and one for that of the backward pass."""

    def __init__(self, capture: ModuleCapture) -> None:
        self._capture = capture

    @property
    def phases(self) -> Sequence[MemoryPhase]:
        """Of each operator."""
        return self._capture.phases

    def tensors(self) -> list[Tensor]:
        """In the order in which they begin."""
        end = len(self.phases) - 1
        n_threads = 1 if self._capture.pass_ == "forward" else 2
        workspaces = [Tensor(WORKSPACE_BYTES, "workspace", 0, end)] * n_threads
        own = (
            Tensor(each.n_bytes, each.held_for, each.made, each.last)
            for each in self._capture.lifetimes
        )
        return [*workspaces, *own]


def module_memory(capture: ModuleCapture) -> MemoryPrediction:
    """What the module's steps hold at most, with the context of an eager process on an H200.

    In fp32 too much by a copy of each fused attention's result, which a CPU, where modules are captured,
    lays out as it finds the queries and CUDA row by row: 2% of the peak of `small` at 4 × 256.
    """
    found = replay(CapturedTensors(capture))
    return MemoryPrediction(
        case=capture.case,
        phase=found.phase,
        peak=found.split,
        reserved_bytes=found.reserved_bytes,
        context_bytes=CONTEXT_BYTES,
    )
