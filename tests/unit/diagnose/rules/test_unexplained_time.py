"""Most of the time with no finding: the largest part of it is named."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom
from peakward.diagnose.examine import examine

from .made import MS, PRODUCTS, abstains, given, judge, kernel, of_host, profile, transfer


def test_what_findings_explain_is_not_told_again():
    """Of 65% idle time a rule has 60%, so that 5% is left."""
    found = profile(PRODUCTS, idle={"data_loading": 171, "unseen": 14})
    assert [each.code for each in examine(given(found)).findings] == ["HOST001"]


def test_it_is_last_whatever_it_takes():
    found = examine(given(profile(PRODUCTS, idle={"data_loading": 20, "unseen": 200})))
    assert [each.code for each in found.findings] == ["HOST001", "TIME001"]
    assert found.findings[1].held_back_s == pytest.approx(0.2)


SORTS = "DeviceRadixSortOnesweepKernel<long>"


def test_kernels_of_a_category():
    found = judge("TIME001", given(profile(kernel(SORTS, 150, "sort"), PRODUCTS)))
    assert isinstance(found, Symptom)
    assert found.title == "Unexplained time: kernels of the category sort"
    assert sum(found.parts.values()) == pytest.approx(0.15)
    assert any(each.name.startswith(SORTS) for each in found.evidence)


def test_many_parts_that_are_most_of_the_time_together():
    many = [kernel(f"k{at}", 25, f"category {at}") for at in range(5)]
    assert isinstance(judge("TIME001", given(profile(*many, PRODUCTS))), Symptom)
    assert judge("TIME001", given(profile(*many[:3], PRODUCTS))) is None


@pytest.mark.parametrize("category", ["matmul", "attention", "convolution"])
def test_silent_about_what_a_model_runs_for(category):
    assert judge("TIME001", given(profile(kernel("gemm", 100, category)))) is None


def test_silent_about_products_that_go_by_cutlass_s_name():
    assert judge("TIME001", given(profile(kernel("device_kernel", 100, "other")))) is None


@pytest.mark.parametrize("cause", ["unseen", "stream_wait", "graph_start", "unknown"])
def test_idle_time_from_a_fifth_on(cause):
    assert judge("TIME001", given(profile(PRODUCTS, idle={cause: 20}))) is None
    assert isinstance(judge("TIME001", given(profile(PRODUCTS, idle={cause: 30}))), Symptom)


def test_kernels_of_a_category_from_a_third_on():
    assert judge("TIME001", given(profile(kernel(SORTS, 45, "sort"), PRODUCTS))) is None
    assert judge("TIME001", given(profile(kernel(SORTS, 55, "sort"), PRODUCTS))) is not None


def test_copies_between_other_places_and_sets():
    copies = kernel("Memcpy DtoD", 80, "memory", phase="other")
    moved = {"memory_ns": 80 * MS, "exposed_memory_ns": 80 * MS}
    for what, named in (("device_to_device", "copies device to device"), ("set", "sets of memory")):
        found = profile(copies, PRODUCTS, transfers=(transfer(what, 9, 2**30, 80),), **moved)
        assert judge("TIME001", given(found)).title == f"Unexplained time: {named}"


def test_time_outside_operators_of_a_cpu():
    found = of_host(kernel("aten::mm", 100, n=10))
    assert judge("TIME001", given(found)) is None
    waits = profile(kernel("aten::mm", 100), devices=("CPU",), span_ns=200 * MS, busy_ns=100 * MS)
    (finding,) = examine(given(waits)).findings
    assert finding.title == "Unexplained time: time outside operators"
    assert finding.held_back_s == finding.beyond_s == pytest.approx(0.1)


def test_without_a_profile():
    assert abstains("TIME001", given())
