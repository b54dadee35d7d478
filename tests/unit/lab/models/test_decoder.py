"""The decoder's parts against small independent formulas, and what the whole must hold to."""

import math

import pytest
import torch

from peakward.kernels.ops.attention import reference
from peakward.kernels.ops.rotation.api import rotate
from peakward.lab.models import decoder

EPS64 = torch.finfo(torch.float64).eps


def build(shape, *, dtype=torch.float64, attention=reference.attention, seed=0):
    return decoder.build(shape, attention=attention, device="cpu", dtype=dtype, seed=seed)


def tokens(shape, *, batch=2, seq_len=12, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(shape.vocab_size, (batch, seq_len), generator=generator)


def close(x, expected, *, roundings):
    """Whether x lies within that many roundings of fp64 of its expectation, as a norm."""
    return bool((x - expected).norm() <= roundings * EPS64 * expected.norm())


ACTIVATIONS = {
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu-tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: max(x, 0.0),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("gated", [True, False], ids=["gated", "plain"])
def test_feed_forward_is_its_formula(name, gated, make_shape):
    ff = build(make_shape(activation=name, gated=gated, bias=True)).blocks[0].ff
    x = torch.randn(3, 5, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 20
    wide = x @ ff.up.weight.T + ff.up.bias
    gate, up = (wide[..., :48], wide[..., 48:]) if gated else (wide, 1.0)
    activated = gate.clone().detach().apply_(ACTIVATIONS[name])
    expected = (activated * up) @ ff.down.weight.T + ff.down.bias
    assert close(ff(x), expected, roundings=30)


@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_norm_is_its_formula_computed_in_fp32_at_least(kind, dtype, make_shape):
    norm = decoder.norm(make_shape(norm=kind, d_model=512, norm_eps=1e-3)).to(dtype)
    generator = torch.Generator().manual_seed(0)
    torch.nn.init.normal_(norm.weight, generator=generator)
    # Far from zero: squares or sums held in bf16 would lose all but 3 of the 512 terms' digits.
    x = (torch.randn(4, 512, generator=generator) + 3).to(dtype)
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True) if kind == "layernorm" else wide
    scale = (centred**2).mean(-1, keepdim=True).add(1e-3).rsqrt()
    expected = centred * scale * norm.weight.double()
    error = (norm(x).double() - expected).norm() / expected.norm()
    # Two roundings to the dtype, of the normalised value and of its product with the weight.
    slack = 20 * 2.0**-24 if dtype == torch.float32 else 20 * EPS64
    assert error <= (2 * torch.finfo(dtype).eps / 2 if dtype == torch.bfloat16 else slack)


def test_rope_turns_complex_numbers(make_shape):
    shape = make_shape(head_dim=6, rope_theta=100.0)
    x = torch.randn(2, 4, 9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cos, sin = decoder.rotation(shape, 9, x)
    rate = torch.tensor([100.0 ** (-2 * i / 6) for i in range(3)], dtype=torch.float64)
    turn = torch.polar(torch.ones(9, 3, dtype=torch.float64), torch.arange(9)[:, None] * rate)
    turned = torch.complex(x[..., :3], x[..., 3:]) * turn
    expected = torch.cat((turned.real, turned.imag), dim=-1)
    assert close(rotate(x, cos, sin), expected, roundings=10)


def test_rope_angles_are_not_rounded_to_bf16(make_shape):
    """bf16 holds 257 as 256: at the first frequency that is a whole radian off."""
    shape = make_shape(max_seq_len=512)
    cos, _ = decoder.rotation(shape, 512, torch.zeros((), dtype=torch.bfloat16))
    assert cos.dtype == torch.bfloat16
    assert cos[257, 0].item() == pytest.approx(math.cos(257), abs=2**-8)


@pytest.mark.parametrize("d_model", [32, 33])
def test_sinusoids_are_the_paper_s(d_model, make_shape):
    found = decoder.sinusoids(make_shape(d_model=d_model), 12, torch.zeros((), dtype=torch.float64))
    assert found.shape == (12, d_model)
    for position in range(12):
        for i in range(d_model):
            angle = position / 10_000 ** ((i - i % 2) / d_model)
            expected = math.cos(angle) if i % 2 else math.sin(angle)
            assert found[position, i].item() == pytest.approx(expected, abs=1e-14)
    rows = decoder.sinusoids(make_shape(d_model=d_model), 4, found, torch.tensor([0, 5]))
    assert torch.equal(rows, torch.stack((found[:4], found[5:9])))


def test_sinusoidal_model_is_a_learned_one_with_that_table(make_shape):
    """Beside sinusoids the paper multiplies embeddings by √d_model, here 4 so that nothing is rounded."""
    shape = {"d_model": 16, "n_heads": 2, "n_kv_heads": 2}
    sinusoidal, learned = (
        build(make_shape(positions=p, **shape)) for p in ("sinusoidal", "learned")
    )
    table = decoder.sinusoids(learned.shape, 32, torch.zeros((), dtype=torch.float64))
    learned.load_state_dict({**sinusoidal.state_dict(), "position_embedding.weight": table})
    learned.embedding.weight.data.mul_(4)
    ids = tokens(learned.shape)
    assert torch.equal(sinusoidal(ids), learned(ids))


ALIBI_SLOPES = {
    8: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256],
    # The paper's code for 12: those of 8, then every second one of 16's 2^-0.5, 2^-1, 2^-1.5, ...
    12: [2.0**-i for i in range(1, 9)] + [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5],
    1: [2.0**-8],
    3: [2.0**-4, 2.0**-8, 2.0**-2],
}


@pytest.mark.parametrize("n_heads", ALIBI_SLOPES)
def test_alibi_falls_off_with_distance(n_heads, make_shape):
    shape = make_shape(n_heads=n_heads, n_kv_heads=n_heads)
    bias = decoder.alibi(shape, 6, torch.zeros((), dtype=torch.float64))
    assert bias.shape == (n_heads, 6, 6)
    for h, slope in enumerate(ALIBI_SLOPES[n_heads]):
        for i in range(6):
            for j in range(i + 1):
                assert bias[h, i, j].item() == pytest.approx(-slope * (i - j), rel=1e-15)


@pytest.mark.parametrize("positions", ["rope", "alibi", "learned", "sinusoidal"])
def test_attention_is_given_the_positions(positions, make_shape):
    """The bias goes to every layer under ALiBi alone, and only RoPE turns queries and keys."""
    seen = []

    def spy(q, k, v, *, window, bias):
        seen.append((q, k, bias))
        return v

    shape = make_shape(positions=positions)
    model = build(shape, attention=spy)
    ids = tokens(shape)
    model(ids)
    assert len(seen) == shape.n_layers
    expected = decoder.alibi(shape, 12, model.embedding.weight) if positions == "alibi" else None
    assert all(b is None if expected is None else torch.equal(b, expected) for *_, b in seen)
    first = model.blocks[0]
    x = model.embedding(ids)
    if positions == "sinusoidal":
        x = decoder.with_sinusoids(shape, x)
    if positions == "learned":
        x = x + model.position_embedding.weight[:12]
    packed = first.attention.qkv(first.attention_norm(x)).unflatten(-1, (12, 8)).transpose(1, 2)
    unturned = torch.equal(seen[0][0], packed[:, :4]) and torch.equal(seen[0][1], packed[:, 4:8])
    assert unturned == (positions != "rope")


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("positions", ["rope", "alibi"])
def test_a_token_reaches_only_those_it_may(window, positions, make_shape):
    """Through n layers, token t reaches the logits from t to t + n·(window - 1), and no other."""
    shape = make_shape(window=window, positions=positions)
    model = build(shape)
    for parameter in model.parameters():  # The initial weights are too small to carry far.
        parameter.data.mul_(5)
    ids = tokens(shape, batch=1, seq_len=16)
    changed = ids.clone()
    changed[0, 6] = (ids[0, 6] + 1) % shape.vocab_size
    with torch.no_grad():
        differs = (model(ids) != model(changed)).any(-1)[0].tolist()
    last = 15 if window is None else 6 + 2 * (window - 1)
    assert [t for t in range(16) if differs[t]] == list(range(6, last + 1))


def test_loss_is_the_mean_over_targets_that_count(make_shape):
    shape = make_shape()
    model = build(shape)
    ids, targets = tokens(shape), tokens(shape, seed=2)
    targets[0, 4:] = -100
    log_p = model(ids).log_softmax(-1)
    counted = [
        -log_p[b, t, targets[b, t]].item()
        for b in range(2)
        for t in range(12)
        if targets[b, t] != -100
    ]
    assert len(counted) == 16
    assert model(ids, targets).item() == pytest.approx(sum(counted) / 16, rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_loss_is_in_fp32_at_least_and_logits_in_the_model_s_dtype(dtype, make_shape):
    shape = make_shape()
    model = build(shape, dtype=dtype)
    ids = tokens(shape)
    assert model(ids).dtype == dtype
    assert model(ids, ids).dtype == torch.promote_types(dtype, torch.float32)


def test_initial_weights_are_gpt2_s(make_shape):
    shape = make_shape(
        d_model=256, d_ff=512, head_dim=64, n_layers=8, qkv_bias=True, bias=True, norm="layernorm"
    )
    for name, parameter in build(shape).named_parameters():
        if parameter.dim() == 1:
            expected = 1.0 if name.endswith("norm.weight") else 0.0
            assert (parameter == expected).all(), name
            continue
        residual = name.endswith(("attention.out.weight", "ff.down.weight"))
        deviation = 0.02 / math.sqrt(16) if residual else 0.02
        # The deviation of n normal values has itself a relative deviation of 1/√(2n).
        slack = 5 / math.sqrt(2 * parameter.numel())
        assert parameter.std().item() == pytest.approx(deviation, rel=slack), name


def test_equal_seeds_give_equal_models_in_every_dtype(make_shape):
    shape = make_shape(norm="layernorm", qkv_bias=True)
    wide, narrow, other = (
        build(shape, dtype=torch.float32, seed=3),
        build(shape, dtype=torch.bfloat16, seed=3),
        build(shape, dtype=torch.float32, seed=4),
    )
    for w, n in zip(wide.parameters(), narrow.parameters(), strict=True):
        assert torch.equal(w.bfloat16(), n)
    assert not torch.equal(wide.embedding.weight, other.embedding.weight)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_build_holds_the_parameters_and_one_tensor_in_fp32(tied, dtype, make_shape, live_bytes):
    shape = make_shape(tied_head=tied, vocab_size=500)
    with live_bytes as live:
        model = build(shape, dtype=dtype)
    parameters = list(model.parameters())
    held = sum(p.numel() * p.element_size() for p in parameters)
    assert held <= live.peak <= held + 4 * max(p.numel() for p in parameters)


def test_tied_head_is_the_embedding(make_shape):
    model = build(make_shape(tied_head=True))
    assert model.readout.head.weight is model.embedding.weight
    assert model(tokens(model.shape)).shape == (2, 12, 61)
