"""What the first step of a fresh process did, from a profile of it. Never used for timing."""

import resource
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from peakward.lab.measure.jobs import Prepare, Prepared
from peakward.lab.measure.messages import FirstStepProfiled
from peakward.records.case import DeviceType, ModelCase, OperatorCase
from peakward.records.measurement import FirstStep

STEADY_STEPS = 3
"""Between the first step and the one whose launches it is compared with."""
LAUNCHES = (
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cudaLaunchCooperativeKernel",
    "cudaGraphLaunch",
)
LOADS = (
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuModuleGetFunction",
    "cuLibraryLoadData",
    "cuLibraryGetKernel",
    "cuLibraryGetModule",
    "cuKernelGetFunction",
    "cudaLibraryLoadData",
    "cudaFuncGetAttributes",
    "cudaFuncSetAttribute",
    "cudaGetFuncBySymbol",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
)
"""Calls that load a kernel, or are the first to name one under lazy loading (CUDA programming
guide, "Lazy loading")."""
ALLOCATIONS = (
    "cudaMalloc",
    "cudaMallocAsync",
    "cudaMallocFromPoolAsync",
    "cudaMallocHost",
    "cudaHostAlloc",
    "cuMemCreate",
    "cuMemMap",
    "cuMemAddressReserve",
    "cuMemSetAccess",
)
DEVICE_ALLOCATIONS = ("cudaMalloc", "cudaMallocAsync", "cudaMallocFromPoolAsync", "cuMemCreate")


Span = tuple[float, float]
"""Start and end in seconds."""


class Call(NamedTuple):
    """A host call into the CUDA runtime or driver."""

    name: str
    start_s: float
    end_s: float


class Profiled(NamedTuple):
    """One step under the profiler."""

    elapsed_s: float
    n_page_faults: int
    calls: tuple[Call, ...]
    gpu_busy: tuple[Span, ...] = ()
    """When the GPU worked: disjoint, in order."""


def profile_first_step(case: ModelCase | OperatorCase, prepare: Prepare) -> FirstStepProfiled:
    """Profile the first step, and for comparison a later one. The process must be fresh."""
    with prepare(case) as prepared:
        first = _profiled(prepared, case.device)
        if case.device == "cpu":
            return FirstStepProfiled(first_step=describe(first, None))
        for _ in range(STEADY_STEPS):
            prepared.step()
        return FirstStepProfiled(first_step=describe(first, _profiled(prepared, case.device)))


def _profiled(prepared: Prepared, device_type: DeviceType) -> Profiled:
    kinds = [ProfilerActivity.CPU]
    if device_type == "cuda":
        kinds.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    with profile(activities=kinds, acc_events=True) as profiler:
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        started = perf_counter()
        prepared.step()
        if device_type == "cuda":
            torch.cuda.synchronize()
        elapsed_s = perf_counter() - started
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    wanted = {*LAUNCHES, *LOADS, *ALLOCATIONS}
    calls, on_gpu = [], []
    for event in profiler.events():
        span = (event.time_range.start * 1e-6, event.time_range.end * 1e-6)
        if event.device_type.name == "CUDA" and not event.is_user_annotation:
            on_gpu.append(span)
        elif event.name in wanted:
            calls.append(Call(event.name, *span))
    return Profiled(elapsed_s, faults, tuple(calls), union(on_gpu))


def union(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The stretches that any of the spans covers: disjoint, in order."""
    merged: list[Span] = []
    for start_s, end_s in sorted(spans):
        if merged and start_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end_s))
        else:
            merged.append((start_s, end_s))
    return tuple(merged)


def describe(first: Profiled, steady: Profiled | None) -> FirstStep:
    """What the first step did beyond a steady one; of a CPU, which has no `steady`, page faults."""
    if steady is None:
        return FirstStep(profiled_s=first.elapsed_s, n_page_faults=first.n_page_faults)
    launch_s = median(_idle_s(steady, LAUNCHES) or [0.0])
    loading_in_launches_s = sum(max(0.0, each - launch_s) for each in _idle_s(first, LAUNCHES))
    return FirstStep(
        profiled_s=first.elapsed_s,
        module_load_s=loading_in_launches_s + sum(_idle_s(first, LOADS)),
        allocation_s=sum(_idle_s(first, ALLOCATIONS)),
        n_device_allocations=len(list(_named(first.calls, DEVICE_ALLOCATIONS))),
        n_page_faults=first.n_page_faults,
    )


def _named(calls: Iterable[Call], names: tuple[str, ...]) -> Iterable[Call]:
    return (call for call in calls if call.name in names)


def _idle_s(step: Profiled, names: tuple[str, ...]) -> list[float]:
    """How long the GPU had nothing to do during each of these calls.

    The rest of a call costs the step nothing: behind a full queue a launch waits for the GPU. Whole
    calls made 1.87 s of 2.7B's first step, which took 2.20 s where a steady one takes 1.98 s (H200).
    """
    starts = [start_s for start_s, _ in step.gpu_busy]
    return [
        call.end_s - call.start_s - _covered_s(call, step.gpu_busy, starts)
        for call in _named(step.calls, names)
    ]


def _covered_s(call: Call, busy: Sequence[Span], starts: Sequence[float]) -> float:
    first = max(bisect_right(starts, call.start_s) - 1, 0)
    covered_s = 0.0
    for start_s, end_s in busy[first : bisect_left(starts, call.end_s)]:
        covered_s += max(0.0, min(end_s, call.end_s) - max(start_s, call.start_s))
    return covered_s
