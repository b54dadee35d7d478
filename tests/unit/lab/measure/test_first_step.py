"""What a first step did, from the calls that a profiler saw."""

import pytest

from peakward.lab.levers.prepare import prepare
from peakward.lab.measure.first_step import Call, Profiled, describe, profile_first_step, union
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
