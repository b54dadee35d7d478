"""Calibration on a real GPU: figures that physics allows."""

from statistics import median
from threading import get_ident

import pytest
import torch

from peakward.hardware import devices
from peakward.lab.measure.calibration import traffic
from peakward.lab.measure.calibration.ceilings import ceilings
from peakward.lab.measure.calibration.products import types
from peakward.lab.measure.calibration.rates import rates
from peakward.lab.measure.calibration.timing import backward_host_s, host_s
from peakward.records.calibration import KINDS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.full,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

NOISE = 1.1


@pytest.fixture(scope="module")
def known():
    """The datasheet of this GPU."""
    here = torch.cuda.get_device_properties(0)
    found = devices.match(here.name, here.total_memory)
    if found is None:
        pytest.skip("this GPU is not catalogued")
    return found


@pytest.fixture(scope="module")
def products():
    found = rates("products", "cuda")
    assert found.absent == ()
    return found.products


def test_ceilings():
    found = ceilings("cuda")
    assert {rate.compute_type for rate in found.matmul} >= {"fp32", "fp16"}
    assert found.copy_bytes_per_s > 1e11


def test_every_kind_of_product_in_every_type_is_under_its_peak(products, known):
    names = {each.name for each in types("cuda")}
    assert {(rate.compute_type, rate.kind) for rate in products} == {
        (name, kind) for name in names for kind in KINDS
    }
    for rate in products:
        peak = known.peak_flops_per_s.get(rate.compute_type)
        assert rate.flops_per_s > 0
        assert peak is None or rate.flops_per_s <= peak.value


def test_a_thin_product_is_no_faster_than_the_best_square(products):
    for name in {rate.compute_type for rate in products}:
        mine = [rate for rate in products if rate.compute_type == name]
        best = max(rate.flops_per_s for rate in mine if rate.kind == "square")
        thin = [rate for rate in mine if rate.kind.startswith("small")]
        assert all(rate.flops_per_s < NOISE * best for rate in thin)


def test_a_product_that_reads_more_than_the_l2_is_within_the_memory_s_bandwidth(products, known):
    """Small m and small n: the large operand is read once a call."""
    width = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
    for rate in products:
        if rate.kind in ("small m", "small n"):
            read = max(rate.m, rate.n) * rate.k * width[rate.compute_type]
            call_s = 2 * rate.m * rate.n * rate.k / rate.flops_per_s
            assert read / call_s < 2 * known.bytes_per_s.value


def test_traffic_grows_with_its_size_and_large_passes_are_under_the_datasheet_s(known):
    found = rates("traffic", "cuda")
    assert found.absent == ()
    for operation in ("copy", "add"):
        by_size = [each for each in found.traffic if each.operation == operation]
        assert by_size[0].bytes_per_s < by_size[-1].bytes_per_s <= known.bytes_per_s.value
        assert by_size[-1].bytes_per_s > known.bytes_per_s.value / 2


def test_launches_cost_microseconds():
    found = rates("launches", "cuda")
    assert found.absent == ()
    assert [(each.side, each.operation) for each in found.launches] == [
        ("device", "elementwise"),
        ("host", "elementwise"),
        ("host", "matmul"),
        ("host", "autograd"),
        ("host", "autograd in a backward pass"),
    ]
    assert all(0.5e-6 < each.call_s < 50e-6 for each in found.launches)


def test_a_backward_pass_s_calls_are_made_by_a_thread_of_autograd_s_own():
    threads = {host_s: set(), backward_host_s: set()}
    for timer, seen in threads.items():
        timer(lambda seen=seen: seen.add(get_ident()), "cuda")
    assert threads[host_s] == {get_ident()}
    assert len(threads[backward_host_s]) == 1
    assert threads[host_s].isdisjoint(threads[backward_host_s])


def test_attention_is_under_its_type_s_peak(known):
    found = rates("attention", "cuda")
    assert found.absent == ()
    assert len(found.attention) == 3 * 2 * 2
    for rate in found.attention:
        # Without tensor cores fp32 has its own peak; flash attention is in 16 bits alone.
        peak = known.peak_flops_per_s.get(rate.compute_type)
        assert rate.flops_per_s > 1e10
        assert peak is None or rate.flops_per_s <= peak.value


def test_the_l2_is_no_slower_than_memory(known):
    found = rates("levels", "cuda")
    assert found.absent == ()
    by_level = {
        level: [each.bytes_per_s for each in found.levels if each.level == level]
        for level in ("L2", "memory")
    }
    assert median(by_level["L2"]) > median(by_level["memory"])
    assert max(by_level["memory"]) <= known.bytes_per_s.value


def test_reads_of_sets_beyond_the_l2_hit_it_no_more_than_it_holds(known):
    """A set swept in turn finds at most the share that the L2 holds of it; the rest is memory's."""
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    for each in rates("levels", "cuda").levels:
        missing = 1 - l2_bytes / each.working_set_bytes
        if missing > 0:
            assert each.bytes_per_s * missing <= known.bytes_per_s.value


def test_a_load_from_the_l2_is_quicker_than_one_from_memory():
    found = rates("latency", "cuda")
    assert found.absent == ()
    by_level = {
        level: [each.load_s for each in found.latency if each.level == level]
        for level in ("L2", "memory")
    }
    assert 5e-8 < max(by_level["L2"]) < min(by_level["memory"]) < 3e-6


def test_pinned_memory_is_no_slower_than_pageable(known):
    found = rates("link", "cuda")
    assert found.absent == ()
    measured = {
        (each.memory, each.direction): each.bytes_per_s
        for each in found.link
        if each.size_bytes == max(traffic.SIZES_BYTES)
    }
    for direction in ("to device", "to host"):
        pinned = measured["pinned", direction]
        assert 1e9 < pinned < known.bytes_per_s.value
        assert pinned * NOISE > measured["pageable", direction]
