"""The types of each precision, and that the global matmul setting comes back."""

import pytest
import torch
from torch import nn

from peakward.kernels.ops.attention.api import implementation
from peakward.kernels.ops.gating.api import fused, of_torch
from peakward.lab.levers import precision
from peakward.lab.models import decoder
from peakward.levers.precision import fp32_matmuls

SETTINGS = {
    "fp32": (torch.float32, None),
    "tf32": (torch.float32, None),
    "bf16-mixed": (torch.float32, torch.bfloat16),
    "fp16-mixed": (torch.float32, torch.float16),
    "bf16": (torch.bfloat16, None),
    "fp8": (torch.float32, torch.bfloat16),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_types(setting):
    parameters, autocast = SETTINGS[setting]
    assert precision.parameter_dtype(setting) == parameters
    with precision.autocast(setting, "cpu"):
        assert torch.is_autocast_enabled("cpu") == (autocast is not None)
        if autocast is not None:
            assert torch.get_autocast_dtype("cpu") == autocast


@pytest.mark.parametrize("before", ["highest", "high", "medium"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_matmul_setting_holds_inside_alone(setting, before):
    outside = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(before)
    try:
        with fp32_matmuls(setting):
            inside = torch.get_float32_matmul_precision()
        assert inside == ("high" if setting == "tf32" else "highest")
        assert torch.get_float32_matmul_precision() == before
    finally:
        torch.set_float32_matmul_precision(outside)


E4M3_ROUNDOFF, E5M2_ROUNDOFF = 2.0**-4, 2.0**-3
"""Half a step at 1 of 3 and of 2 bits of mantissa."""


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
    precision.turn_to_fp8(layer)

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
    precision.apply_fp8(model)
    turned = [name for name, each in model.named_modules() if type(each) is precision.Fp8Linear]
    assert len(turned) == 4 * len(model.blocks)
    assert all(name.startswith("blocks.") for name in turned)
    assert type(model.readout.head) is nn.Linear
    assert all(each is before[name] for name, each in model.named_parameters())


@pytest.mark.parametrize(
    ("changes", "gating", "is_turned"),
    [({}, fused, True), ({}, of_torch, False), ({"bias": True}, fused, False)],
    ids=["fused", "torch", "biases"],
)
def test_networks_with_the_fused_swiglu_alone_are_turned_whole(
    make_shape, changes, gating, is_turned
):
    shape = make_shape(gated=True, activation="silu", d_model=32, d_ff=48, **changes)
    model = decoder.build(
        shape,
        attention=implementation("naive"),
        gating=gating,
        device="cpu",
        dtype=torch.float32,
        seed=0,
    )
    precision.apply_fp8(model)
    assert {type(each.ff) is precision.Fp8FeedForward for each in model.blocks} == {is_turned}
    x = torch.randn(2, 16, 32, requires_grad=True)
    network = model.blocks[0].ff
    network(x).sum().backward()
    assert all(each.grad is not None for each in (x, *network.parameters()))
    assert all(each.any() for each in network.buffers())
