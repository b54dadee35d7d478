"""What cuBLAS holds for itself."""

from peakward.prediction.memory.timeline import Timeline

WORKSPACE_BYTES = 32 * 2**20
"""From the allocator, for each thread and stream that multiplies: torch's figure for compute
capability 9 (`getChosenWorkspaceSize` in ATen/cuda/CublasHandlePool.cpp)."""


def workspace(line: Timeline) -> None:
    """Of another thread or stream, from its first product on."""
    line.keep(line.op(WORKSPACE_BYTES, category="workspace"))
