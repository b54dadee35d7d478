"""Products by shape: those that are named, and no others."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from peakward.lab.measure.calibration import products
from peakward.lab.measure.calibration.attempt import Attempt, outcome
from peakward.lab.measure.calibration.product import Shape
from peakward.records.calibration import KINDS, Absence


@pytest.fixture
def small(monkeypatch):
    """Shapes that take no time, and a device that does 10 FLOPs a second as torch counts them."""

    def count(call, device_type):
        with FlopCounterMode(display=False) as counter:
            call()
        return counter.get_total_flops() / 10

    monkeypatch.setitem(products.SQUARES, "cpu", (8, 16))
    thin = {"small m": Shape(2, 16, 32), "small n": Shape(16, 2, 32), "small k": Shape(16, 32, 2)}
    monkeypatch.setitem(products.THIN, "cpu", thin)
    monkeypatch.setattr(products, "device_s", count)
    monkeypatch.setattr(products, "MAX_CALL_S", 1e9)


def measured():
    return [outcome(each, "products") for each in products.attempts("cpu")]


def test_every_shape_in_every_type_and_its_rate(small):
    *rates, last = measured()
    expected = {
        ("square", 8, 8, 8),
        ("square", 16, 16, 16),
        ("small m", 2, 16, 32),
        ("small n", 16, 2, 32),
        ("small k", 16, 32, 2),
    }
    for name in ("fp32", "bf16", "fp16"):
        mine = [rate for rate in rates if rate.compute_type == name]
        assert {(rate.kind, rate.m, rate.n, rate.k) for rate in mine} == expected
        assert all(rate.flops_per_s == pytest.approx(10) for rate in mine)
    assert last == Absence(
        subject="products", figure="partial wave", reason="a CPU runs no waves of thread blocks"
    )


def test_what_would_take_too_long_at_the_rates_so_far_is_not_tried(small, monkeypatch):
    monkeypatch.setattr(products, "MAX_CALL_S", 2 * 16**3 / 10 - 1)
    absent = [each for each in measured() if isinstance(each, Absence)][:3]
    assert [each.figure for each in absent] == [
        f"{name} square 16 × 16 × 16" for name in ("fp32", "bf16", "fp16")
    ]
    assert "it would take 8.2e+02 s" in absent[0].reason


def test_a_type_that_fails_costs_no_other(small, monkeypatch):
    def product(each, shape, device_type):
        if each.name == "bf16":
            raise RuntimeError("no bf16 here")
        return lambda: torch.mm(torch.ones(shape.m, shape.k), torch.ones(shape.k, shape.n))

    monkeypatch.setattr(products, "product", product)
    found = measured()
    absent = [each for each in found if isinstance(each, Absence)]
    assert [each.reason for each in absent[:-1]] == ["RuntimeError: no bf16 here"] * 5
    assert {each.compute_type for each in found if each not in absent} == {"fp32", "fp16"}


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 132 multiprocessors, as an H200 has."""
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))


def test_a_gpu_has_every_kind_in_sizes_that_fp8_takes(gpu):
    shapes = products.shapes("cuda")
    assert {kind for kind, _ in shapes} == set(KINDS)
    assert all(size % 16 == 0 for _, shape in shapes for size in shape)
    names = [each.figure for each in products.attempts("cuda") if isinstance(each, Attempt)]
    assert len(set(names)) == len(names) == 5 * len(shapes)


@pytest.mark.parametrize(("tile_m", "tile_n"), [(256, 256), (256, 128), (128, 256), (128, 128)])
def test_waves_are_whole_or_broken_whatever_the_tile(tile_m, tile_n):
    tiles = {kind: (shape.m // tile_m) * (shape.n // tile_n) for kind, shape in products.waves(132)}
    assert tiles["whole waves"] % 132 == 0
    assert 0 < tiles["partial wave"] % 132 <= 4


def test_thin_operands_are_what_their_kind_says():
    for thin in products.THIN.values():
        assert thin["small m"].m < min(thin["small m"].n, thin["small m"].k) / 100
        assert thin["small n"].n < min(thin["small n"].m, thin["small n"].k) / 100
        assert thin["small k"].k < min(thin["small k"].m, thin["small k"].n) / 50
