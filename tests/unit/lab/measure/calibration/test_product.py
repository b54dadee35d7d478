"""The products that are timed: their types, shapes and FLOPs."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from peakward.lab.measure.calibration.product import Shape, product, types


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
        result = product(each, shape, "cpu")()
        torch.manual_seed(0)
        a = torch.randn(shape.m, shape.k).to(each.dtype).double()
        b = torch.randn(shape.k, shape.n).to(each.dtype).double()
        assert result.dtype == each.dtype
        assert result.shape == (shape.m, shape.n)
        torch.testing.assert_close(result.double(), a @ b, rtol=0.02, atol=0.05)


def test_flops_are_those_that_torch_counts():
    shape = Shape(3, 5, 7)
    call = product(next(types("cpu")), shape, "cpu")
    with FlopCounterMode(display=False) as counter:
        call()
    assert counter.get_total_flops() == shape.flops
