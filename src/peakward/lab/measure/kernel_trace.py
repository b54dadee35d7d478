"""Records one step of a GPU under torch's profiler: its kernels, and every allocation on their clock."""

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from peakward.lab.measure.profile import write


class KernelTrace:
    """A trace whose profiler attaches itself at once, so that this slow part lies before the recorded
    step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._profiler = profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True
        )
        self._profiler.prepare_trace()

    def start(self) -> None:
        """Starts recording; the device must have finished all work."""
        torch.cuda.synchronize()
        self._profiler.start_trace()

    def stop(self) -> None:
        """Stops recording, once the device has done all launched work."""
        torch.cuda.synchronize()
        self._profiler.stop_trace()

    def write(self) -> None:
        """Writes the trace, gzipped."""
        write(self._profiler, self.path)
