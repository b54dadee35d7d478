"""One step of a GPU under torch's profiler: its kernels, and every allocation on their clock."""

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from peakward.lab.measure.profile import write


class KernelTrace:
    """Attaches itself at once, so that what is slow of that lies before the step that it records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._profiler = profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True
        )
        self._profiler.prepare_trace()

    def start(self) -> None:
        """With nothing on the device that is not done."""
        torch.cuda.synchronize()
        self._profiler.start_trace()

    def stop(self) -> None:
        """Once the device has done all that was launched."""
        torch.cuda.synchronize()
        self._profiler.stop_trace()

    def write(self) -> None:
        """The trace, gzipped."""
        write(self._profiler, self.path)
