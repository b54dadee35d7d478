"""Splits the first step of a fresh process into its causes, from a profile. Never used for timing."""

import resource
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from peakward.lab.measure.jobs import Prepare, Prepared
from peakward.lab.measure.messages import FirstStepProfiled
from peakward.records.case import DeviceType, ModelCase, OperatorCase
from peakward.records.measurement import FirstStep

STEADY_STEPS = 3
"""The number of steps between the first step and the one that it is compared with."""
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
PRODUCTS = (
    "aten::mm",
    "aten::addmm",
    "aten::_addmm_activation",
    "aten::bmm",
    "aten::baddbmm",
    "aten::_scaled_mm",
)
"""Operators that call cuBLAS. It makes its handle and its workspace at the first of them, and asks its
heuristics for a kernel at the first one of each shape."""
INDUCTORS = " (dynamo_timed)"
"""The end of the names that torch gives the ranges of its compiler."""
TUNING = ("autotun", "benchmark")
"""Parts of the names of ranges that time candidates."""
COMPILES, TUNES = "peakward::compiles", "peakward::tunes"
"""The ranges for Triton's own compilations and autotuning."""

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
    """The spans in which the GPU worked: disjoint and in order, as are all spans below."""
    tuning: tuple[Span, ...] = ()
    """The spans in which Inductor and Triton time candidates."""
    compiling: tuple[Span, ...] = ()
    """The spans of compilation by torch.compile or Triton, autotuning included."""
    products: tuple[Span, ...] = ()
    """The spans of the host in the operators of PRODUCTS."""


def profile_first_step(case: ModelCase | OperatorCase, prepare: Prepare) -> FirstStepProfiled:
    """Profiles the first step and, for comparison, a later one. The process must be fresh."""
    with prepare(case) as prepared:
        # Else the work of the profiler at its own first use would be part of the first step.
        with profile(activities=_kinds(case.device)):
            pass
        first = _profiled(prepared, case.device)
        if case.device == "cpu":
            return FirstStepProfiled(first_step=describe(first, None))
        for _ in range(STEADY_STEPS):
            prepared.step()
        return FirstStepProfiled(first_step=describe(first, _profiled(prepared, case.device)))


def _kinds(device_type: DeviceType) -> list[ProfilerActivity]:
    on_gpu = [ProfilerActivity.CUDA] if device_type == "cuda" else []
    return [ProfilerActivity.CPU, *on_gpu]


def _profiled(prepared: Prepared, device_type: DeviceType) -> Profiled:
    if device_type == "cuda":
        torch.cuda.synchronize()
    with (
        triton_in_ranges(),
        profile(activities=_kinds(device_type), acc_events=True) as profiler,
    ):
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        started = perf_counter()
        prepared.step()
        if device_type == "cuda":
            torch.cuda.synchronize()
        elapsed_s = perf_counter() - started
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    return read(profiler.events(), elapsed_s, faults)


def read(events: Iterable[Any], elapsed_s: float, n_page_faults: int) -> Profiled:
    """The step from the profiler's events: calls into CUDA, and spans by their meaning."""
    wanted = {*LAUNCHES, *LOADS, *ALLOCATIONS}
    calls: list[Call] = []
    spans: dict[str, list[Span]] = {"busy": [], "tuning": [], "compiling": [], "products": []}
    for event in events:
        name, span = event.name, (event.time_range.start * 1e-6, event.time_range.end * 1e-6)
        if event.device_type.name == "CUDA":
            if not event.is_user_annotation:
                spans["busy"].append(span)
        elif name in wanted:
            calls.append(Call(name, *span))
        elif name in PRODUCTS:
            spans["products"].append(span)
        elif name == TUNES or (name.endswith(INDUCTORS) and any(each in name for each in TUNING)):
            spans["tuning"].append(span)
        elif name == COMPILES or name.endswith(INDUCTORS):
            spans["compiling"].append(span)
    return Profiled(
        elapsed_s=elapsed_s,
        n_page_faults=n_page_faults,
        calls=tuple(calls),
        gpu_busy=union(spans["busy"]),
        tuning=union(spans["tuning"]),
        compiling=union(spans["compiling"]),
        products=union(spans["products"]),
    )


@contextmanager
def triton_in_ranges() -> Iterator[None]:
    """Makes Triton's compilations and the timing of its autotuner ranges of a profile, as Inductor's
    are by themselves. Does nothing where Triton is not loaded."""
    if "triton" not in sys.modules:
        yield
        return
    from triton import knobs
    from triton.runtime.autotuner import Autotuner

    before = knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook, Autotuner._bench
    opened: list[record_function] = []

    def begins(**told: Any) -> Any:
        opened.append(record_function(COMPILES))
        opened[-1].__enter__()
        return before[0](**told) if before[0] is not None else None

    def ended(**told: Any) -> Any:
        if opened:
            opened.pop().__exit__(None, None, None)
        return before[1](**told) if before[1] is not None else None

    def timed(*given: Any, **named: Any) -> Any:
        with record_function(TUNES):
            return before[2](*given, **named)

    knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook = begins, ended
    Autotuner._bench = timed
    try:
        yield
    finally:
        knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook, Autotuner._bench = before
        while opened:
            opened.pop().__exit__(None, None, None)


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
    """The causes of the first step's time beyond a steady one; no moment counts twice. A CPU has no
    `steady`, and only the causes that need no GPU are given."""
    tuning_s = _length_s(first.tuning)
    # Compiling costs the step nothing while the GPU's queue is full; the step does wait for tuning.
    compiling_s = _apart_s(first.compiling, union((*first.tuning, *first.gpu_busy)))
    if steady is None:
        return FirstStep(
            profiled_s=first.elapsed_s,
            n_page_faults=first.n_page_faults,
            compile_s=compiling_s,
            autotune_s=tuning_s,
        )
    told = union((*first.gpu_busy, *first.tuning, *first.compiling))
    left = first._replace(gpu_busy=told)
    launch_s = median(_idle_s(steady, LAUNCHES) or [0.0])
    loading_in_launches_s = sum(max(0.0, each - launch_s) for each in _idle_s(left, LAUNCHES))
    loads_s = sum(_idle_s(left, LOADS)) - sum(_idle_s(steady, LOADS))
    return FirstStep(
        profiled_s=first.elapsed_s,
        profiled_steady_s=steady.elapsed_s,
        module_load_s=loading_in_launches_s + max(0.0, loads_s),
        allocation_s=max(0.0, sum(_idle_s(left, ALLOCATIONS)) - sum(_idle_s(steady, ALLOCATIONS))),
        compile_s=compiling_s,
        autotune_s=tuning_s,
        products_s=max(0.0, _products_s(left) - _products_s(steady)),
        n_device_allocations=len(list(_named(first.calls, DEVICE_ALLOCATIONS))),
        n_page_faults=first.n_page_faults,
    )


def _products_s(step: Profiled) -> float:
    """The host's time in operators of products while the GPU is idle, without calls into CUDA, which
    are counted by themselves."""
    calls = ((call.start_s, call.end_s) for call in step.calls)
    return _apart_s(step.products, union((*step.gpu_busy, *calls)))


def _length_s(spans: Iterable[Span]) -> float:
    return sum(end_s - start_s for start_s, end_s in spans)


def _apart_s(spans: Sequence[Span], others: Sequence[Span]) -> float:
    """The length of the first spans outside of the others; both are unions."""
    return _length_s(union((*spans, *others))) - _length_s(others)


def _named(calls: Iterable[Call], names: tuple[str, ...]) -> Iterable[Call]:
    return (call for call in calls if call.name in names)


def _idle_s(step: Profiled, names: tuple[str, ...]) -> list[float]:
    """The time for which the GPU was idle during each of these calls.

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
