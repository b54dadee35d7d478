"""Profiles a few steps of a live loop with torch's profiler."""

from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as Profiler

from peakward.lab.levers.ranges import opened


class Window:
    """A window that attaches in one step, since that takes up to seconds the first time, and records
    from the next.

    The window waits for a GPU where recording begins and where it ends, so that it holds exactly the
    work that it launched.
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
        """Records from the step that begins now."""
        if self._on_gpu:
            torch.cuda.synchronize()
        self._profiler.start_trace()
        self._is_recording = True
        self._step.enter_context(opened("step"))

    def next_step(self) -> None:
        """Notes that one step has ended and another begins."""
        self._step.close()
        self._step.enter_context(opened("step"))

    def waiting_for_data(self) -> AbstractContextManager[object]:
        """The range in which the loop draws a batch."""
        return opened("data_load") if self._is_recording else nullcontext()

    def close(self) -> None:
        """Detaches, from whatever state."""
        if not self._is_recording:
            # A prepared profiler can only be ended after it has recorded.
            self._profiler.start_trace()
        self._is_recording = False
        try:
            self._step.close()
        finally:
            self._profiler.stop_trace()

    def write(self, path: Path) -> None:
        """Writes the trace of a closed window, not compressed: that would cost the loop more than disk."""
        self._profiler.export_chrome_trace(str(path))
