"""The place where a worker runs: its devices, and the memory they held before it touched them."""

import importlib
from contextlib import AbstractContextManager
from functools import cached_property

import torch

from peakward.lab.measure import compile_report, memory, nvml
from peakward.lab.measure.clock import Clock, clock_for
from peakward.lab.measure.crowd import Crowd
from peakward.lab.measure.telemetry import Monitor, Sampler
from peakward.records.case import Case, DeviceType
from peakward.records.errors import PeakwardError


class Site:
    """The devices of a process. Its first CUDA case must be the first use of the GPU, because the idle
    memory is read then.

    A CPU case does not ask for the GPU, which may be one that cannot be named.
    """

    @cached_property
    def _gpu(self) -> nvml.Gpu | None:
        return nvml.visible_gpu() if torch.version.cuda is not None else None

    @cached_property
    def _idle_bytes(self) -> int | None:
        return None if self._gpu is None else nvml.memory(self._gpu).used

    def enter(self, device_type: DeviceType) -> None:
        """Gets the device ready for a case.

        Raises:
            PeakwardError: The device does not exist, or CUDA's device 0 is not the one that NVML
            assumes.
        """
        _ = self._cuda_floor_bytes if device_type == "cuda" else self._cpu_floor_bytes

    @cached_property
    def _cuda_floor_bytes(self) -> int:
        _ = self._idle_bytes
        if not torch.cuda.is_available():
            raise PeakwardError("expected a GPU that torch can use, got none: use --device cpu")
        if self._gpu is not None:
            nvml.check_is(self._gpu, str(torch.cuda.get_device_properties(0).uuid))
        torch.empty(1, device="cuda")
        return memory.release("cuda")

    @cached_property
    def _cpu_floor_bytes(self) -> int:
        """The resident bytes, including the imports of the first optimiser: 150 MiB that would
        otherwise count as the first case's own."""
        importlib.import_module("torch._dynamo")
        return memory.release("cpu")

    def clock(self, device_type: DeviceType) -> Clock:
        """The clock that times steps."""
        return clock_for(device_type)

    def watch(self, device_type: DeviceType) -> Monitor:
        """A watch over a GPU's sensors, or over a CPU's other work, for one stretch of timed steps."""
        return Sampler(self._gpu) if device_type == "cuda" else Crowd()

    def meter(self, device_type: DeviceType) -> memory.Meter:
        """A meter of the device's memory, for one case."""
        if device_type == "cuda":
            return memory.CudaMeter(self._gpu, self._idle_bytes)
        return memory.CpuMeter()

    def limited(self, case: Case) -> AbstractContextManager[None]:
        """The case's memory limit, for as long as the block lasts."""
        context = self.context_bytes() if case.device == "cuda" else None
        return memory.limited(case.device, case.memory_limit_bytes, context_bytes=context)

    def context_bytes(self) -> int | None:
        """The GPU memory that this process holds outside torch's allocator; None where unknown."""
        return memory.context_bytes(self._gpu, self._idle_bytes)

    def leave(self, device_type: DeviceType) -> bool:
        """Gives back the memory that a case left. Returns whether memory is back where it was at the
        start."""
        compile_report.reset()
        floor = self._cuda_floor_bytes if device_type == "cuda" else self._cpu_floor_bytes
        return memory.is_clean(device_type, floor, memory.release(device_type))

    def held_bytes(self, device_type: DeviceType) -> int:
        """The GPU memory that this process keeps between requests; 0 on a CPU."""
        return (self.context_bytes() or 0) if device_type == "cuda" else 0
