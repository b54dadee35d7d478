"""What a first step did, from the calls that a profiler saw."""

import pytest

from peakward.lab.levers.prepare import prepare
from peakward.lab.measure.first_step import Call, Profiled, describe, profile_first_step
from peakward.records.case import ModelCase, Workload


def test_loading_is_what_launches_take_beyond_steady_ones_and_the_loads():
    first = Profiled(
        elapsed_s=1.0,
        n_page_faults=7,
        calls=(
            Call("cudaLaunchKernel", 0.2),
            Call("cudaLaunchKernel", 0.01),
            Call("cuLaunchKernelEx", 0.11),
            Call("cudaLaunchKernel", 0.001),  # quicker than a steady one: owes nothing
            Call("cuModuleLoadData", 0.05),
            Call("cudaMalloc", 0.03),
            Call("cudaMalloc", 0.02),
            Call("cudaHostAlloc", 0.01),
        ),
    )
    launches = tuple(Call("cudaLaunchKernel", each) for each in (0.01, 0.01, 0.5))
    found = describe(first, Profiled(0.1, 0, launches))
    assert found.profiled_s == 1.0
    assert found.module_load_s == pytest.approx(0.19 + 0.10 + 0.05)
    assert found.allocation_s == pytest.approx(0.06)
    assert found.n_device_allocations == 2
    assert found.n_page_faults == 7


def test_a_cpu_has_page_faults_alone():
    found = describe(Profiled(1.0, 7, ()), None)
    assert (found.profiled_s, found.n_page_faults) == (1.0, 7)
    assert found.module_load_s is None
    assert found.allocation_s is None
    assert found.n_device_allocations is None


def test_a_real_first_step(make_shape):
    case = ModelCase(model=make_shape(), workload=Workload(batch_size=2, seq_len=8), device="cpu")
    found = profile_first_step(case, prepare).first_step
    assert found.profiled_s > 0
    assert found.n_page_faults > 0
