"""The peak memory of a captured module, tensor by tensor through the allocator."""

from peakward.prediction.memory.peak import CONTEXT_BYTES
from peakward.prediction.memory.replay import replay
from peakward.prediction.memory.timeline import Lifetimes, Tensor
from peakward.prediction.memory.workspace import WORKSPACE_BYTES
from peakward.records.memory import MemoryPrediction
from peakward.records.op_graph import ModuleCapture


def lifetimes_of(capture: ModuleCapture) -> Lifetimes:
    """A capture's tensors, and cuBLAS's workspaces, one for the thread of the forward pass and one for
    that of the backward pass."""
    end = len(capture.phases) - 1
    n_threads = 1 if capture.pass_ == "forward" else 2
    workspaces = [Tensor(WORKSPACE_BYTES, "workspace", 0, end)] * n_threads
    own = [Tensor(each.n_bytes, each.held_for, each.made, each.last) for each in capture.lifetimes]
    return Lifetimes.of([*workspaces, *own], capture.phases)


def module_memory(capture: ModuleCapture) -> MemoryPrediction:
    """The most memory that the module's steps hold, with the context of an eager process on an H200."""
    found = replay(lifetimes_of(capture))
    return MemoryPrediction(
        case=capture.case,
        phase=found.phase,
        peak=found.split,
        reserved_bytes=found.reserved_bytes,
        context_bytes=CONTEXT_BYTES,
    )
