"""The mixture of experts against one token at a time, and what its routing must hold to."""

import math

import pytest
import torch

from peakward.kernels.ops.attention import reference
from peakward.lab.models import decoder

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
    for mine, theirs in zip((found, *got), (expected, *wanted), strict=True):
        # With one active its share is 1, so that nothing reaches the router but rounding.
        scale = max(theirs.norm(), 1.0)
        assert (mine - theirs).norm() <= 300 * EPS64 * scale


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
