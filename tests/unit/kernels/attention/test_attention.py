"""Every implementation of attention against the definition, written as loops in plain Python."""

import math
from contextlib import contextmanager

import pytest
import torch
from torch.nn.attention import SDPBackend

from peakward.kernels.ops.attention import flex as flex_attention
from peakward.kernels.ops.attention import reference, sdpa
from peakward.kernels.ops.attention.api import implementation, in_ranges
from tiers import in_full

EPS = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
ON_CPU = ["naive", "sdpa", "sdpa-flash", "sdpa-math"]
CASES = {
    "mha": {},
    "gqa": {"n_kv_heads": 2},
    "mqa": {"n_kv_heads": 1},
    "window": {"window": 5},
    "window of one": {"window": 1},
    "window past the end": {"window": 99},
    "bias": {"bias": True},
    "bias, window, gqa": {"bias": True, "window": 4, "n_kv_heads": 2},
    "odd head dim": {"head_dim": 5},
    "one token": {"seq_len": 1},
}


def definition(q, k, v, window, bias):
    """softmax over the allowed keys, one query at a time, in fp64."""
    batch, heads, seq_len, head_dim = q.shape
    out = torch.zeros(q.shape, dtype=torch.float64)
    q, k, v = (each.double().tolist() for each in (q, k, v))
    for b in range(batch):
        for h in range(heads):
            kv = h * len(k[b]) // heads
            for i in range(seq_len):
                first = 0 if window is None else max(0, i - window + 1)
                keys = range(first, i + 1)
                scores = [
                    sum(x * y for x, y in zip(q[b][h][i], k[b][kv][j], strict=True))
                    / math.sqrt(head_dim)
                    + (0.0 if bias is None else bias[h, i, j].item())
                    for j in keys
                ]
                top = max(scores)
                weights = [math.exp(score - top) for score in scores]
                for c in range(head_dim):
                    mixed = sum(w * v[b][kv][j][c] for w, j in zip(weights, keys, strict=True))
                    out[b, h, i, c] = mixed / sum(weights)
    return out


def inputs(dtype, *, n_kv_heads=4, seq_len=11, head_dim=8, window=None, bias=False):
    generator = torch.Generator().manual_seed(3)

    def draw(heads):
        return torch.randn(
            2, heads, seq_len, head_dim, generator=generator, dtype=torch.float64
        ).to(dtype)

    drawn = torch.randn(4, seq_len, seq_len, generator=generator).to(dtype) if bias else None
    return draw(4), draw(n_kv_heads), draw(n_kv_heads), {"window": window, "bias": drawn}


def relative_error(x, expected):
    return float((x.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("dtype", EPS, ids=["fp32", "fp64"])
def test_is_the_definition(name, case, dtype):
    q, k, v, options = inputs(dtype, **case)
    expected = definition(q, k, v, **options)
    found = implementation(name)(q, k, v, **options)
    assert found.dtype == dtype
    # Scores round d products, exp carries their absolute error over, the mix rounds S products.
    steps = math.sqrt(q.shape[-1]) + math.sqrt(q.shape[-2]) + 4
    assert relative_error(found, expected) <= steps * EPS[dtype]


@pytest.mark.parametrize("name", ON_CPU[1:])
@pytest.mark.parametrize("case", ["mha", "gqa", "window", "bias"])
def test_gradients_are_those_of_the_reference(name, case):
    q, k, v, options = inputs(torch.float64, **CASES[case])
    upstream = torch.randn(q.shape, dtype=q.dtype, generator=torch.Generator().manual_seed(4))

    def gradients(attention):
        leaves = [each.clone().requires_grad_() for each in (q, k, v)]
        attention(*leaves, **options).backward(upstream)
        return [leaf.grad for leaf in leaves]

    expected = gradients(reference.attention)
    for found, wanted in zip(gradients(implementation(name)), expected, strict=True):
        assert relative_error(found, wanted) <= 20 * EPS[torch.float64]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["naive", "sdpa"])
def test_in_ranges_every_bit_is_the_same(name, dtype, case):
    """Forward and backward; and the ranges are opened one inside the other."""
    q, k, v, options = inputs(dtype, **case)
    opened = []

    @contextmanager
    def note(part):
        opened.append(part)
        yield
        opened.append(f"/{part}")

    def results(attention):
        leaves = [each.clone().requires_grad_() for each in (q, k, v)]
        out = attention(*leaves, **options)
        out.sum().backward()
        return [out, *(leaf.grad for leaf in leaves)]

    plain = implementation(name)
    ranged = results(in_ranges(plain, note))
    assert all(torch.equal(a, b) for a, b in zip(ranged, results(plain), strict=True))
    parts = ["scores", "softmax", "values"] if name == "naive" else []
    inner = [mark for part in parts for mark in (f"attention.{part}", f"/attention.{part}")]
    assert opened == ["attention", *inner, "/attention"]


def test_reference_takes_the_softmax_in_fp32():
    """bf16 weights of a long uniform row would sum to something else: 2^-8 rounding per weight."""
    q = torch.zeros(1, 1, 512, 8, dtype=torch.bfloat16)
    v = torch.ones(1, 1, 512, 8, dtype=torch.bfloat16)
    out = reference.attention(q, q, v, window=None, bias=None)
    assert out.dtype == torch.bfloat16
    assert (out.float() - 1).abs().max() <= 2**-7


@pytest.mark.parametrize("name", sdpa.BACKENDS)
def test_runs_on_the_backend_that_it_is_asked_for(name, monkeypatch):
    seen = []

    def spy(*args, **kwargs):
        seen.append(
            (
                torch.backends.cuda.cudnn_sdp_enabled(),
                torch.backends.cuda.flash_sdp_enabled(),
                torch.backends.cuda.mem_efficient_sdp_enabled(),
                torch.backends.cuda.math_sdp_enabled(),
            )
        )
        return args[0]

    monkeypatch.setattr(sdpa.F, "scaled_dot_product_attention", spy)
    q, k, v, options = inputs(torch.float32)
    implementation(name)(q, k, v, **options)
    order = [
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ]
    backend = sdpa.BACKENDS[name]
    assert seen == [tuple(backend is None or backend is each for each in order)]


def test_never_falls_back_silently():
    """A CPU has no cuDNN: asked for it, attention must fail rather than run another kernel."""
    q, k, v, options = inputs(torch.float32)
    with pytest.raises(RuntimeError):
        implementation("sdpa-cudnn")(q, k, v, **options)


def test_unknown_name_is_refused():
    with pytest.raises(
        ValueError, match=r"expected an attention implementation of naive, .*'flsh'"
    ):
        implementation("flsh")


@pytest.mark.parametrize("compiled", [False, *in_full([True])])
def test_flex_is_causal_and_makes_one_mask_a_length_and_window(compiled, monkeypatch):
    made, make = [], flex_attention.create_block_mask
    monkeypatch.setattr(
        flex_attention,
        "create_block_mask",
        lambda *size, **device: made.append(size) or make(*size, **device),
    )
    if not compiled:  # With Dynamo's `eager` backend, by torch itself.
        monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    flex = implementation("flex")
    for seq_len, window in ((11, None), (11, None), (5, None), (11, None), (11, 4)):
        q, k, v, _ = inputs(torch.float32, n_kv_heads=2, seq_len=seq_len)
        found = flex(q, k, v, window=window, bias=None)
        expected = definition(q, k, v, window, None)
        assert (found.double() - expected).norm() <= 32 * EPS[torch.float32] * expected.norm()
    assert len(made) == 4


@pytest.mark.parametrize("name", ["flex", "flash", "flash-hopper"])
def test_what_takes_no_bias_says_so(name):
    q, k, v, options = inputs(torch.float32, bias=True)
    with pytest.raises(ValueError, match="expected no bias"):
        implementation(name)(q, k, v, **options)


def test_flex_takes_no_keys_of_a_cache():
    q, k, v, _ = inputs(torch.float32)
    with pytest.raises(
        ValueError, match="as many keys as queries with FlexAttention, got 11 and 1"
    ):
        implementation("flex")(q[:, :, -1:], k, v, window=None, bias=None)
