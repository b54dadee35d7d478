"""The workspaces of cuBLAS."""

from peakward.prediction.memory.timeline import Timeline

WORKSPACE_BYTES = 32 * 2**20
"""From the allocator, for each thread and stream that multiplies: torch's figure for compute
capability 9 (`getChosenWorkspaceSize` in ATen/cuda/CublasHandlePool.cpp)."""


def workspace(line: Timeline) -> None:
    """Adds the workspace of another thread or stream, which lasts from its first product on."""
    line.keep(line.op(WORKSPACE_BYTES, category="workspace"))
