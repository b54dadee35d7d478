"""The fp8 linear layer: its scales, its three products against fp64, and where it is put."""

import pytest
import torch
from torch import nn

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.levers import fp8
from peakward.lab.models import decoder

E4M3_ROUNDOFF, E5M2_ROUNDOFF = 2.0**-4, 2.0**-3
"""Half a step at 1 of 3 and of 2 bits of mantissa."""


@pytest.mark.parametrize(
    ("dtype", "largest"), [(fp8.E4M3, 448.0), (fp8.E5M2, 57344.0)], ids=["e4m3", "e5m2"]
)
@pytest.mark.parametrize("size", [1e-8, 1.0, 1e20])
def test_the_largest_element_takes_the_largest_number(dtype, largest, size):
    x = torch.tensor([0.0, -1.0, 0.5, 0.25]) * size
    found, scale = fp8._quantise(x, dtype)
    assert found.float().tolist() == [0.0, -largest, largest / 2, largest / 4]
    assert (found.float() * scale).tolist() == pytest.approx(x.tolist(), rel=1e-6)


def test_zeros_stay_zeros():
    found, scale = fp8._quantise(torch.zeros(4), fp8.E4M3)
    assert (found.float() * scale).tolist() == [0.0] * 4


def relative_error(x, expected):
    return float((x.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("bias", [False, True])
def test_products_are_those_of_the_linear_layer(bias):
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(64, 48, bias=bias)
    x = torch.randn(2, 16, 64, generator=generator)
    upstream = torch.randn(2, 16, 48, generator=generator)
    wide = nn.Linear(64, 48, bias=bias, dtype=torch.float64)
    wide.load_state_dict(layer.state_dict())
    layer.__class__ = fp8.Fp8Linear

    def run(layer, x):
        x = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=x.dtype == torch.float32):
            y = layer(x)
        y.backward(upstream.to(y.dtype))
        return y.detach(), x.grad, layer.weight.grad

    found, expected = run(layer, x), run(wide, x.double())
    assert found[0].dtype == torch.bfloat16
    assert found[1].dtype == found[2].dtype == torch.float32
    # Each operand's roundings are independent, so that two of them add in squares.
    forward = 2**0.5 * E4M3_ROUNDOFF
    backward = (E4M3_ROUNDOFF**2 + E5M2_ROUNDOFF**2) ** 0.5
    bounds = (forward, backward, backward)
    for mine, wanted, bound in zip(found, expected, bounds, strict=True):
        assert relative_error(mine, wanted) <= bound
    assert relative_error(found[0], expected[0]) > 2.0**-8  # It is fp8, not bf16.


def test_blocks_alone_are_turned_and_keep_their_parameters(make_shape):
    model = decoder.build(
        make_shape(), attention=implementation("naive"), device="cpu", dtype=torch.float32, seed=0
    )
    before = dict(model.named_parameters())
    fp8.apply(model)
    turned = [name for name, each in model.named_modules() if type(each) is fp8.Fp8Linear]
    assert len(turned) == 4 * len(model.blocks)
    assert all(name.startswith("blocks.") for name in turned)
    assert type(model.readout.head) is nn.Linear
    assert all(each is before[name] for name, each in model.named_parameters())
