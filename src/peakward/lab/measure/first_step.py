"""What the first step of a fresh process did, from a profile of it. Never used for timing."""

import resource
from collections.abc import Iterable
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


class Call(NamedTuple):
    """A host call into the CUDA runtime or driver."""

    name: str
    duration_s: float


class Profiled(NamedTuple):
    """One step under the profiler."""

    elapsed_s: float
    n_page_faults: int
    calls: tuple[Call, ...]


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
    calls = (
        Call(event.name, event.time_range.elapsed_us() * 1e-6)
        for event in profiler.events()
        if event.name in wanted
    )
    return Profiled(elapsed_s, faults, tuple(calls))


def describe(first: Profiled, steady: Profiled | None) -> FirstStep:
    """What the first step did beyond a steady one; of a CPU, which has no `steady`, page faults."""
    if steady is None:
        return FirstStep(profiled_s=first.elapsed_s, n_page_faults=first.n_page_faults)
    launch_s = median([each.duration_s for each in _named(steady.calls, LAUNCHES)] or [0.0])
    launches = list(_named(first.calls, LAUNCHES))
    loading_in_launches_s = sum(max(0.0, each.duration_s - launch_s) for each in launches)
    return FirstStep(
        profiled_s=first.elapsed_s,
        module_load_s=loading_in_launches_s + _total_s(first.calls, LOADS),
        allocation_s=_total_s(first.calls, ALLOCATIONS),
        n_device_allocations=len(list(_named(first.calls, DEVICE_ALLOCATIONS))),
        n_page_faults=first.n_page_faults,
    )


def _named(calls: Iterable[Call], names: tuple[str, ...]) -> Iterable[Call]:
    return (call for call in calls if call.name in names)


def _total_s(calls: Iterable[Call], names: tuple[str, ...]) -> float:
    return sum(call.duration_s for call in _named(calls, names))
