"""Linear layers of a decoder with weights of 8 and 4 bits: what they keep, how they compute, what is held."""

import msgspec
import pytest
import torch
from torch import nn

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.models import decoder, quantised_linear
from peakward.lab.models.quantised_linear import Int4Linear, Int8Linear, QuantisedLinear

KINDS = {"int8": Int8Linear, "int4:128": Int4Linear}
STEPS = {"int8": 127, "int4:128": 7}
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")


@pytest.fixture
def shape(make_shape):
    return make_shape(d_model=128, d_ff=256, n_heads=2, n_kv_heads=2, head_dim=64, n_layers=2)


def build(shape, weights="dense", dtype=torch.float32):
    how = implementation("naive")
    return decoder.build(shape, attention=how, weights=weights, device="cpu", dtype=dtype, seed=3)


def layers(model):
    return {name: each for name, each in model.named_modules() if isinstance(each, nn.Linear)}


def layer(weights, weight, bias=None):
    with torch.device("meta"):
        made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    quantised_linear.apply(nn.ModuleList([made]), weights)
    if bias is not None:
        made.bias = nn.Parameter(bias)
    made.keep(weight)
    return made


@pytest.mark.parametrize("weights", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_model_is_the_dense_one_rounded(shape, weights, dtype):
    """Each element within half a step of the dense one's, and bf16's rounding of the scale; what is no
    matrix of a block is bit for bit as it was."""
    dense, quantised = build(shape, dtype=dtype), build(shape, weights, dtype)
    assert list(layers(dense)) == list(layers(quantised))
    for name, each in layers(quantised).items():
        before = layers(dense)[name].weight.detach().double()
        if not name.startswith("blocks"):
            assert type(each) is nn.Linear
            assert torch.equal(each.weight.double(), before)
            continue
        assert type(each) is KINDS[weights]
        groups = 1 if weights == "int8" else before.shape[1] // 128
        largest = before.view(len(before), groups, -1).abs().amax(-1)
        step = (largest / STEPS[weights]).repeat_interleave(before.shape[1] // groups, 1)
        error = (each.dequantised(torch.float64) - before).abs()
        assert bool((error <= step / 2 + before.abs() * 2**-7 + 1e-9).all())
        assert float(error.max()) > float(step.min()) / 4
    others = dict(quantised.named_parameters())
    for name, parameter in dense.named_parameters():
        if not (name.startswith("blocks") and parameter.dim() == 2):
            assert torch.equal(parameter, others[name])


@pytest.mark.parametrize(("weights", "bits"), [("int8", 8 + 16 / 128), ("int4:128", 4 + 16 / 128)])
def test_no_dense_weight_is_left(shape, weights, bits):
    shape = msgspec.structs.replace(shape, d_ff=128)
    model = build(shape, weights)
    quantised = [each for each in model.modules() if isinstance(each, QuantisedLinear)]
    assert len(quantised) == 2 * 4
    n = quantised_linear.n_weights(model)
    assert n == sum(each.numel() for name, each in build(shape).named_parameters() if "blocks" in name
                    and each.dim() == 2)  # fmt: skip
    assert (
        sum(each.numel() for each in model.parameters())
        == sum(each.numel() for each in build(shape).parameters()) - n
    )
    assert sum(each.nbytes for each in model.buffers()) * 8 == bits * n
    assert not any(each.is_meta for each in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize("weights", KINDS)
def test_rows_are_quantised_apart(weights, monkeypatch):
    weight = torch.randn(50, 256, generator=torch.Generator().manual_seed(0))
    whole = layer(weights, weight)
    monkeypatch.setattr(quantised_linear, "CHUNK_ELEMENTS", 7 * 256)
    parts = layer(weights, weight)
    assert torch.equal(whole.stored, parts.stored)
    assert torch.equal(whole.scale, parts.scale)


@interpreted
@pytest.mark.parametrize("weights", KINDS)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_it_computes_a_linear_layer_with_what_is_kept(weights, with_bias, autocast):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 128, generator=generator)
    x = torch.randn(2, 3, 128, generator=generator)
    bias = torch.randn(48, generator=generator) if with_bias else None
    made = layer(weights, weight, bias)
    with torch.no_grad(), torch.autocast("cpu", torch.float16, enabled=autocast):
        found = made(x)
    assert found.dtype == (torch.float16 if autocast else torch.float32)
    wide = None if bias is None else bias.double()
    exact = nn.functional.linear(x.double(), made.dequantised(torch.float64), wide)
    roundoff = 2.0**-11 if autocast else 2.0**-24
    assert float((found.double() - exact).norm() / exact.norm()) < 3 * roundoff


@interpreted
@pytest.mark.parametrize("weights", KINDS)
def test_a_compiler_takes_it_whole(weights):
    made = layer(weights, torch.randn(48, 128, generator=torch.Generator().manual_seed(0)))
    x = torch.ones(2, 1, 128)
    with torch.no_grad():
        compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x), made(x))
