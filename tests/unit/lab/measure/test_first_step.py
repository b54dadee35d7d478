"""What a first step did, from the calls that a profiler saw."""

from types import SimpleNamespace

import pytest
from torch.profiler import ProfilerActivity, profile

from peakward.lab.levers.prepare import prepare
from peakward.lab.measure.first_step import (
    Call,
    Profiled,
    describe,
    profile_first_step,
    read,
    triton_in_ranges,
    union,
)
from peakward.records.case import ModelCase, Workload


def took(name: str, *durations_s: float) -> tuple[Call, ...]:
    """Calls that each begin at 0."""
    return tuple(Call(name, 0.0, each) for each in durations_s)


def test_loading_is_what_launches_take_beyond_steady_ones_and_the_loads():
    first = Profiled(
        elapsed_s=1.0,
        n_page_faults=7,
        calls=(
            *took("cudaLaunchKernel", 0.2, 0.01),
            *took("cuLaunchKernelEx", 0.11),
            *took("cudaLaunchKernel", 0.001),  # quicker than a steady one: owes nothing
            *took("cuModuleLoadData", 0.05),
            *took("cudaMalloc", 0.03, 0.02),
            *took("cudaHostAlloc", 0.01),
        ),
    )
    found = describe(first, Profiled(0.1, 0, took("cudaLaunchKernel", 0.01, 0.01, 0.5)))
    assert found.profiled_s == 1.0
    assert found.module_load_s == pytest.approx(0.19 + 0.10 + 0.05)
    assert found.allocation_s == pytest.approx(0.06)
    assert found.n_device_allocations == 2
    assert found.n_page_faults == 7


def test_a_call_during_which_the_gpu_works_costs_only_what_it_leaves_idle():
    calls = (
        Call("cudaLaunchKernel", 1.0, 2.0),  # waits for a place in the queue
        Call("cudaLaunchKernel", 2.5, 3.5),  # loads for 0.25 s after the GPU has run dry
        Call("cudaLaunchKernel", 5.0, 5.5),  # loads with nothing queued
        Call("cuModuleLoadData", 0.0, 0.75),  # the GPU begins in the middle of it
        Call("cudaMalloc", 3.0, 3.5),
    )
    busy = union([(2.0, 3.25), (0.5, 1.5), (1.25, 2.0), (7.0, 8.0)])
    assert busy == ((0.5, 3.25), (7.0, 8.0))
    found = describe(Profiled(9.0, 0, calls, busy), Profiled(9.0, 0, ()))
    assert found.module_load_s == pytest.approx(0.25 + 0.5 + 0.5)
    assert found.allocation_s == pytest.approx(0.25)


def test_no_moment_is_in_two_parts():
    first = Profiled(
        20.0,
        0,
        calls=(
            Call("cuModuleLoadData", 1.0, 2.0),  # of a kernel that was tuned
            Call("cuModuleLoadData", 5.0, 6.0),  # of one that was compiled
            Call("cuModuleLoadData", 10.0, 11.0),
            Call("cudaMalloc", 10.0, 10.5),  # within a product, as what loads is
        ),
        gpu_busy=((2.0, 3.0), (6.0, 6.5), (14.0, 15.0)),
        tuning=((0.0, 4.0),),
        compiling=((0.0, 7.0),),
        products=((9.0, 15.0),),
    )
    found = describe(first, Profiled(1.0, 0, (), products=((0.0, 0.25),)))
    assert found.autotune_s == 4.0, "the GPU's work in it is its own"
    assert found.compile_s == pytest.approx(3.0 - 0.5)
    assert found.module_load_s == pytest.approx(1.0)
    assert found.allocation_s == pytest.approx(0.5)
    assert found.products_s == pytest.approx(6.0 - 1.0 - 1.0 - 0.25)


def test_what_a_steady_step_does_too_is_no_part():
    calls = (*took("cudaFuncGetAttributes", 0.1), *took("cudaMalloc", 0.2))
    found = describe(Profiled(1.0, 0, calls), Profiled(0.9, 0, calls))
    assert (found.module_load_s, found.allocation_s, found.profiled_steady_s) == (0.0, 0.0, 0.9)


def event(name, start_us, end_us, device="CPU", annotation=False):
    return SimpleNamespace(
        name=name,
        time_range=SimpleNamespace(start=start_us, end=end_us),
        device_type=SimpleNamespace(name=device),
        is_user_annotation=annotation,
    )


def test_events_are_told_by_their_names():
    found = read(
        (
            event("cudaLaunchKernel", 0, 1e6),
            event("aten::mm", 0, 2e6),
            event("aten::matmul", 0, 3e6),
            event("CachingAutotuner.benchmark_all_configs (dynamo_timed)", 4e6, 5e6),
            event("select_algorithm_autotune (dynamo_timed)", 5e6, 6e6),
            event("entire_frame_compile (dynamo_timed)", 4e6, 8e6),
            event("peakward::compiles", 8e6, 9e6),
            event("peakward::tunes", 9e6, 10e6),
            event("gemm", 1e6, 2e6, "CUDA"),
            event("peakward::forward", 0, 9e6, "CUDA", annotation=True),
        ),
        elapsed_s=10.0,
        n_page_faults=3,
    )
    assert found == Profiled(
        10.0,
        3,
        (Call("cudaLaunchKernel", 0.0, 1.0),),
        gpu_busy=((1.0, 2.0),),
        tuning=((4.0, 6.0), (9.0, 10.0)),
        compiling=((4.0, 9.0),),
        products=((0.0, 2.0),),
    )


def test_triton_s_compilations_and_timings_are_ranges_of_a_profile(monkeypatch):
    import triton
    from triton import knobs
    from triton.runtime.autotuner import Autotuner

    monkeypatch.setattr(Autotuner, "_bench", lambda self: "timed")
    before = knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook, Autotuner._bench
    with (
        triton_in_ranges(),
        profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler,
    ):
        assert not knobs.runtime.jit_cache_hook(fn=triton), "true would keep Triton from compiling"
        knobs.runtime.jit_post_compile_hook(fn=triton)
        assert Autotuner._bench(None) == "timed"
    found = read(profiler.events(), 1.0, 0)
    assert len(found.compiling) == len(found.tuning) == 1
    after = knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook, Autotuner._bench
    assert after == before


def test_a_cpu_has_page_faults_alone():
    found = describe(Profiled(1.0, 7, ()), None)
    assert (found.profiled_s, found.n_page_faults) == (1.0, 7)
    assert found.module_load_s is None
    assert found.allocation_s is None
    assert found.n_device_allocations is None


def test_a_real_first_step(make_shape):
    """Its logits take 38 MB: beyond 32 MiB malloc asks the kernel, however warm this process is."""
    case = ModelCase(
        model=make_shape(vocab_size=300_000),
        workload=Workload(batch_size=4, seq_len=8, pass_="forward"),
        device="cpu",
    )
    found = profile_first_step(case, prepare).first_step
    assert found.profiled_s > 0
    assert found.n_page_faults > 0
    assert (found.compile_s, found.autotune_s) == (0.0, 0.0), "eager, without Triton"
