"""The mixture of experts against one token at a time, and what its routing must hold to."""

import math

import msgspec
import pytest
import torch
from torch import nn

from peakward.kernels.ops.attention import reference
from peakward.kernels.ops.attention.api import implementation
from peakward.lab.models import decoder
from peakward.lab.models import layers as decoder_layers
from peakward.lab.models.layers import Int4By32Linear, Int4Linear, Int8Linear, QuantisedLinear

EPS64 = torch.finfo(torch.float64).eps


def build(shape, *, dtype=torch.float64):
    return decoder.build(shape, attention=reference.attention, device="cpu", dtype=dtype, seed=0)


@pytest.fixture
def make_mixture(make_shape):
    """make_mixture(n_experts, n_active, dtype=, **shape's fields): one with weights of order 1."""

    def make(n_experts, n_active, *, dtype=torch.float64, **fields):
        shape = make_shape(n_experts=n_experts, n_active_experts=n_active, **fields)
        mixture = build(shape, dtype=dtype).blocks[0].ff
        for parameter in mixture.parameters():
            parameter.data.mul_(20)
        return mixture

    return make


def tokens(*, n=24, dtype=torch.float64):
    x = torch.randn(2, n // 2, 32, generator=torch.Generator().manual_seed(1))
    return x.to(dtype)


def one_by_one(mixture, x, gated):
    """Mixtral's equation, token by token: the softmax over the chosen logits alone."""
    outputs = []
    for token in x.flatten(0, 1):
        logits = mixture.router.weight @ token
        chosen = sorted(range(len(logits)), key=lambda e: -logits[e])[: mixture.n_active]
        weights = torch.stack([logits[e].exp() for e in chosen])
        total = torch.zeros_like(token)
        for weight, e in zip(weights / weights.sum(), chosen, strict=True):
            wide = mixture.up.weight[e] @ token
            gate, up = (wide[:48], wide[48:]) if gated else (wide, 1.0)
            total = total + weight * (mixture.down.weight[e] @ (gate / (1 + (-gate).exp()) * up))
        outputs.append(total)
    return torch.stack(outputs).view(x.shape)


@pytest.mark.parametrize("gated", [True, False], ids=["gated", "plain"])
@pytest.mark.parametrize(("n_experts", "n_active"), [(4, 1), (5, 2), (3, 3), (40, 2)])
def test_it_is_its_formula_with_its_gradients(n_experts, n_active, gated, make_mixture):
    """Forty experts for 48 visits: some have none."""
    mixture = make_mixture(n_experts, n_active, gated=gated)
    x = tokens().requires_grad_()
    inputs = (x, *mixture.parameters())
    weights = torch.linspace(-1, 2, x.numel(), dtype=torch.float64).view(x.shape)
    expected = one_by_one(mixture, x, gated)
    wanted = torch.autograd.grad((expected * weights).sum(), inputs)
    found = mixture(x)
    got = torch.autograd.grad((found * weights).sum(), inputs)
    # With one active its share is 1, so that nothing reaches the router but rounding: of each token's
    # gradient by its share, times the token.
    by_share = (expected * weights).sum(-1, keepdim=True).abs()
    reaches_router = (by_share * x.abs()).sum((0, 1)).norm().item()
    names = ("output", "x", *(name for name, _ in mixture.named_parameters()))
    for name, mine, theirs in zip(names, (found, *got), (expected, *wanted), strict=True):
        scale = max(theirs.norm().item(), reaches_router if name == "router.weight" else 0.0)
        assert (mine - theirs).norm().item() <= 300 * EPS64 * scale


def test_equal_experts_are_a_dense_network(make_mixture, make_shape):
    """Whichever a token goes through, as the shares sum to 1."""
    mixture = make_mixture(4, 2)
    for layer in (mixture.up, mixture.down):
        layer.weight.data.copy_(layer.weight.data[:1].expand_as(layer.weight))
    dense = build(make_shape()).blocks[0].ff
    dense.up.weight.data.copy_(mixture.up.weight[0])
    dense.down.weight.data.copy_(mixture.down.weight[0])
    x = tokens()
    found, expected = mixture(x), dense(x)
    assert (found - expected).norm() <= 100 * EPS64 * expected.norm()


def test_a_token_does_not_depend_on_the_others(make_mixture):
    """No capacity: a token reaches its experts also where all tokens choose the same ones."""
    mixture = make_mixture(4, 2)
    x = tokens()
    alone = torch.cat([mixture(x[:1, i : i + 1]) for i in range(12)], dim=1)
    crowd = mixture(x[:1].repeat(1, 50, 1))[:, -12:]
    assert (crowd - alone).norm() <= 100 * EPS64 * alone.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_routes_are_weighed_in_fp32_at_least(dtype, make_mixture):
    mixture = make_mixture(6, 2, dtype=dtype)
    x = tokens(dtype=dtype).flatten(0, 1)
    share, chosen = mixture.route(x)
    assert share.dtype == torch.promote_types(dtype, torch.float32)
    odds = mixture.router(x).double().exp()
    best, index = odds.sort(descending=True)
    # In bf16 two logits may be one number, and either the likelier.
    assert torch.equal(odds.gather(1, chosen), best[:, :2])
    if dtype != torch.bfloat16:
        assert torch.equal(chosen, index[:, :2])
    expected = best[:, :2] / best[:, :2].sum(-1, keepdim=True)
    assert (share - expected).norm() <= 8 * torch.finfo(share.dtype).eps * expected.norm()
    assert mixture(tokens(dtype=dtype)).dtype == dtype


def test_initial_weights_of_experts_are_gpt2_s(make_shape):
    shape = make_shape(n_experts=6, n_active_experts=2, n_layers=8)
    for name, parameter in build(shape).named_parameters():
        if ".ff." in name:
            scale = 1 / math.sqrt(16) if name.endswith("ff.down.weight") else 1.0
            slack = 5 / math.sqrt(2 * parameter.numel())
            assert parameter.std().item() == pytest.approx(0.02 * scale, rel=slack), name
    experts = build(shape).blocks[0].ff.up.weight
    assert not torch.equal(experts[0], experts[1])


KINDS = {"int8": Int8Linear, "int4:128": Int4Linear, "int4:32-calibrated": Int4By32Linear}
STEPS = {"int8": 127, "int4:128": 7, "int4:32-calibrated": 7}
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")


@pytest.fixture
def shape(make_shape):
    return make_shape(d_model=128, d_ff=256, n_heads=2, n_kv_heads=2, head_dim=64, n_layers=2)


def made(shape, weights="dense", dtype=torch.float32):
    how = implementation("naive")
    return decoder.build(shape, attention=how, weights=weights, device="cpu", dtype=dtype, seed=3)


def layers(model):
    return {name: each for name, each in model.named_modules() if isinstance(each, nn.Linear)}


def layer(weights, weight, bias=None):
    with torch.device("meta"):
        made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    decoder_layers.apply_quantised(nn.ModuleList([made]), weights)
    if bias is not None:
        made.bias = nn.Parameter(bias)
    made.keep(weight)
    return made


@pytest.mark.parametrize("weights", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_model_is_the_dense_one_rounded(shape, weights, dtype):
    """Each element within half a step of the dense one's, and bf16's rounding of the scale; what is no
    matrix of a block is bit for bit as it was."""
    dense, quantised = made(shape, dtype=dtype), made(shape, weights, dtype)
    assert list(layers(dense)) == list(layers(quantised))
    for name, each in layers(quantised).items():
        before = layers(dense)[name].weight.detach().double()
        if not name.startswith("blocks"):
            assert type(each) is nn.Linear
            assert torch.equal(each.weight.double(), before)
            continue
        assert type(each) is KINDS[weights]
        groups = 1 if weights == "int8" else before.shape[1] // each.group
        largest = before.view(len(before), groups, -1).abs().amax(-1)
        step = (largest / STEPS[weights]).repeat_interleave(before.shape[1] // groups, 1)
        error = (each.dequantised(torch.float64) - before).abs()
        assert bool((error <= step / 2 + before.abs() * 2**-7 + 1e-9).all())
        assert float(error.max()) > float(step.min()) / 4
    others = dict(quantised.named_parameters())
    for name, parameter in dense.named_parameters():
        if not (name.startswith("blocks") and parameter.dim() == 2):
            assert torch.equal(parameter, others[name])


@pytest.mark.parametrize(
    ("weights", "bits"),
    [("int8", 8 + 16 / 128), ("int4:128", 4 + 16 / 128), ("int4:32-calibrated", 4 + 16 / 32)],
)
def test_no_dense_weight_is_left(shape, weights, bits):
    shape = msgspec.structs.replace(shape, d_ff=128)
    model = made(shape, weights)
    quantised = [each for each in model.modules() if isinstance(each, QuantisedLinear)]
    assert len(quantised) == 2 * 4
    n = decoder_layers.n_weights(model)
    assert n == sum(each.numel() for name, each in made(shape).named_parameters() if "blocks" in name
                    and each.dim() == 2)  # fmt: skip
    assert (
        sum(each.numel() for each in model.parameters())
        == sum(each.numel() for each in made(shape).parameters()) - n
    )
    assert sum(each.nbytes for each in model.buffers()) * 8 == bits * n
    assert not any(each.is_meta for each in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize("weights", KINDS)
def test_rows_are_quantised_apart(weights, monkeypatch):
    weight = torch.randn(50, 256, generator=torch.Generator().manual_seed(0))
    whole = layer(weights, weight)
    monkeypatch.setattr(decoder_layers, "CHUNK_ELEMENTS", 7 * 256)
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
    # torch's own error, or that of rounding the result once.
    narrow = None if bias is None else bias.to(found.dtype)
    theirs = nn.functional.linear(x.to(found.dtype), made.dequantised(found.dtype), narrow)
    once = torch.finfo(found.dtype).eps / 2 * float(exact.norm())
    off, theirs_off = (float((each.double() - exact).norm()) for each in (found, theirs))
    assert off <= 2 * max(theirs_off, once)


@interpreted
@pytest.mark.parametrize("weights", KINDS)
def test_a_compiler_takes_it_whole(weights):
    made = layer(weights, torch.randn(48, 128, generator=torch.Generator().manual_seed(0)))
    x = torch.ones(2, 1, 128)
    with torch.no_grad():
        compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x), made(x))
