"""A few steps of a live loop under torch's profiler."""

from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as Profiler

from peakward.lab.levers.ranges import opened


class Window:
    """Attached in one step, since that takes up to seconds the first time; recording from the next.

    A GPU is waited for where recording begins and where it ends, so that all work in the window is
    work that the window launched.
    """

    def __init__(self, *, with_stack: bool) -> None:
        self._on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        gpu = [ProfilerActivity.CUDA] if self._on_gpu else []
        self._profiler = Profiler(
            activities=[ProfilerActivity.CPU, *gpu], record_shapes=True, with_stack=with_stack
        )
        self._step = ExitStack()
        self._is_recording = False
        self._profiler.prepare_trace()

    def start(self) -> None:
        """Record from the step that begins now."""
        if self._on_gpu:
            torch.cuda.synchronize()
        self._profiler.start_trace()
        self._is_recording = True
        self._step.enter_context(opened("step"))

    def next_step(self) -> None:
        """One step has ended, another begins."""
        self._step.close()
        self._step.enter_context(opened("step"))

    def waiting_for_data(self) -> AbstractContextManager[object]:
        """The range in which the loop draws a batch."""
        return opened("data_load") if self._is_recording else nullcontext()

    def close(self) -> None:
        """Detach, from whatever state."""
        if not self._is_recording:
            # A profiler that was prepared can only be let go of by way of recording.
            self._profiler.start_trace()
        self._is_recording = False
        try:
            self._step.close()
        finally:
            self._profiler.stop_trace()

    def write(self, path: Path) -> None:
        """The trace of a closed window, not compressed: that would cost the loop more than disk."""
        self._profiler.export_chrome_trace(str(path))
