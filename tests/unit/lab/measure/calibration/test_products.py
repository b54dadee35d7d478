"""The products that are timed: their types, shapes and FLOPs."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from peakward.lab.measure.calibration import products
from peakward.lab.measure.calibration.products import (
    Shape,
    Size,
    attention_call,
    attention_flops,
    product_call,
    types,
)
from peakward.lab.measure.calibration.timing import Attempt, outcome
from peakward.records.calibration import KINDS, Absence


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        ((6, 1), ["fp32"]),
        ((7, 0), ["fp32", "fp16"]),
        ((8, 0), ["fp32", "tf32", "bf16", "fp16"]),
        ((8, 9), ["fp32", "tf32", "bf16", "fp16", "fp8"]),
        ((9, 0), ["fp32", "tf32", "bf16", "fp16", "fp8"]),
    ],
)
def test_types_by_capability(monkeypatch, capability, names):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert [each.name for each in types("cuda")] == names


@pytest.mark.parametrize("shape", [Shape(16, 16, 16), Shape(3, 5, 7)])
def test_products_are_of_their_type_and_shape_and_right(shape):
    for each in types("cpu"):
        torch.manual_seed(0)
        result = product_call(each, shape, "cpu")()
        torch.manual_seed(0)
        a = torch.randn(shape.m, shape.k).to(each.dtype).double()
        b = torch.randn(shape.k, shape.n).to(each.dtype).double()
        assert result.dtype == each.dtype
        assert result.shape == (shape.m, shape.n)
        torch.testing.assert_close(result.double(), a @ b, rtol=0.02, atol=0.05)


def test_flops_are_those_that_torch_counts():
    shape = Shape(3, 5, 7)
    call = product_call(next(types("cpu")), shape, "cpu")
    with FlopCounterMode(display=False) as counter:
        call()
    assert counter.get_total_flops() == shape.flops


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
    return [outcome(each, "products") for each in products.product_attempts("cpu")]


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

    monkeypatch.setattr(products, "product_call", product)
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
    names = [each.figure for each in products.product_attempts("cuda") if isinstance(each, Attempt)]
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


SIZE = Size(2, 3, 8)


def plain(q, k, v):
    """Without a mask and without recomputation: all four products of a backward pass."""
    scores = torch.matmul(q, k.transpose(-1, -2)) / products.HEAD_DIM**0.5
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def test_flops_are_half_of_those_without_a_mask():
    operands = [
        torch.randn(SIZE.batch, SIZE.heads, SIZE.seq_len, products.HEAD_DIM, requires_grad=True)
        for _ in range(3)
    ]
    with FlopCounterMode(display=False) as forward:
        out = plain(*operands)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    assert attention_flops(SIZE, "forward") == forward.get_total_flops() / 2
    assert attention_flops(SIZE, "backward") == backward.get_total_flops() / 2


def test_a_pass_is_causal_attention_of_the_size_and_type():
    for each in types("cpu"):
        torch.manual_seed(0)
        found = attention_call(each, "forward", SIZE, "cpu")()
        torch.manual_seed(0)
        shape = (SIZE.batch, SIZE.heads, SIZE.seq_len, products.HEAD_DIM)
        _, _, v = (torch.randn(shape).to(each.dtype) for _ in range(3))
        assert (found.shape, found.dtype) == (v.shape, each.dtype)
        # The first query sees the first key alone.
        torch.testing.assert_close(found[..., 0, :], v[..., 0, :], rtol=0.01, atol=0.01)
        gradients = attention_call(each, "backward", SIZE, "cpu")()
        assert [gradient.shape for gradient in gradients] == [v.shape] * 3


def test_rates_are_of_both_passes_at_every_length_and_no_tf32(monkeypatch):
    monkeypatch.setitem(products.SIZES, "cpu", (Size(1, 1, 4), Size(1, 1, 8)))
    monkeypatch.setattr(products, "device_s", lambda call, device_type: 0.5)
    rates = [outcome(each, "attention") for each in products.attention_attempts("cpu")]
    assert [(rate.compute_type, rate.seq_len, rate.pass_) for rate in rates] == [
        (name, length, pass_)
        for name in ("fp32", "bf16", "fp16")
        for length in (4, 8)
        for pass_ in ("forward", "backward")
    ]
    assert rates[0].flops_per_s == 2 * 4 * 4 * products.HEAD_DIM / 0.5
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    on_gpu = [each.figure.split()[0] for each in products.attention_attempts("cuda")]
    assert set(on_gpu) == {"fp32", "bf16", "fp16"}


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_two_lengths(device_type):
    short, long = (size.seq_len for size in products.SIZES[device_type])
    assert long == 4 * short
