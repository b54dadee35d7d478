"""Kernels tuned on the GPU that is there: right, kept, and not looked for again."""

import json
from functools import partial

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")
from peakward.kernels.ops import tuning
from peakward.kernels.ops.cross_entropy.api import cross_entropy
from peakward.kernels.ops.decode_attention.api import decode_attention
from peakward.kernels.ops.flash_attention.api import flash_attention
from peakward.kernels.ops.quantized_matmul import reference as quantised
from peakward.kernels.ops.quantized_matmul.api import int4_matmul, int8_matmul
from peakward.kernels.ops.rms_norm.api import rms_norm
from peakward.kernels.ops.softmax.api import softmax

pytestmark = pytest.mark.gpu


def forget():
    """As another process."""
    for each in (tuning._kept, tuning._settled, tuning.path_of):
        each.cache_clear()


@pytest.fixture
def kept(monkeypatch, tmp_path):
    monkeypatch.setenv("PEAKWARD_TUNE_KERNELS", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    yield tuning.path_of(torch.device("cuda"))
    forget()


def attention(seq_len):
    q, k, v, gradient = (
        torch.randn(2, 4, seq_len, 80, device="cuda", dtype=torch.bfloat16) for _ in range(4)
    )
    leaves = [each.requires_grad_() for each in (q, k, v)]
    mine = flash_attention(*leaves, causal=True)
    theirs = F.scaled_dot_product_attention(*leaves, is_causal=True)
    return [(out, *torch.autograd.grad(out, leaves, gradient)) for out in (mine, theirs)]


def norm(width):
    x, gradient = (torch.randn(512, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight = torch.randn(width, device="cuda", dtype=torch.bfloat16)
    leaves = [each.requires_grad_() for each in (x, weight)]
    outs = (
        rms_norm(x, (width,), weight, 1e-6),
        F.rms_norm(x, (width,), weight, 1e-6),
    )
    return [(out, *torch.autograd.grad(out, leaves, gradient)) for out in outs]


def rows(width):
    x, gradient = (torch.randn(512, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x.requires_grad_()
    outs = softmax(x), torch.softmax(x, -1)
    return [(out, *torch.autograd.grad(out, x, gradient)) for out in outs]


def loss(vocab):
    logits = torch.randn(512, vocab, device="cuda", dtype=torch.bfloat16)
    targets = torch.randint(vocab, (512,), device="cuda")
    return (cross_entropy(logits, targets),), (F.cross_entropy(logits.float(), targets),)


def decode(positions):
    q = torch.randn(2, 16, 1, 128, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(2, 4, positions, 128, device="cuda").bfloat16() for _ in range(2))
    theirs = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return (decode_attention(q, k, v),), (theirs,)


def product(n_rows, *, quantise, matmul, dequantise):
    x, weight = (torch.randn(n, 2048, device="cuda", dtype=torch.bfloat16) for n in (n_rows, 3072))
    stored, scale = quantise(weight)
    return (matmul(x, stored, scale),), (x @ dequantise(stored, scale).t(),)


int4 = partial(
    product,
    quantise=partial(quantised.int4_weight, group=128),
    matmul=int4_matmul,
    dequantise=lambda *held: quantised.int4_dequantized(*held, None, torch.bfloat16, group=128),
)
int8 = partial(
    product,
    quantise=quantised.int8_weight,
    matmul=int8_matmul,
    dequantise=lambda *held: quantised.int8_dequantized(*held, torch.bfloat16),
)
CASES = {
    "attention": (attention, 1000, 3),
    "norm": (norm, 1000, 2),
    "wide norm": (norm, 20000, 2),
    "softmax": (rows, 5000, 2),
    "cross-entropy": (loss, 32000, 1),
    "decode": (decode, 4096, 1),
    "int4 of one row": (int4, 1, 1),
    "int4 of 16 rows": (int4, 16, 1),
    "int4 of 64 rows": (int4, 64, 1),
    "int8 of one row": (int8, 1, 1),
    "int8 of 16 rows": (int8, 16, 1),
}


@pytest.mark.parametrize("call, size, n_kept", CASES.values(), ids=CASES)
def test_tuned_kernels_are_right_and_tuned_once(kept, capsys, call, size, n_kept):
    torch.manual_seed(0)
    for mine, theirs in zip(*call(size), strict=True):
        assert float((mine - theirs).norm() / theirs.norm()) < 1e-2
    assert capsys.readouterr().err.count("peakward: tuning ") == n_kept
    assert len(json.loads(kept.read_text())) == n_kept
    call(size)
    assert not capsys.readouterr().err


def test_a_graph_is_captured_with_what_was_kept(kept):
    norm(1000)
    x = torch.randn(512, 1000, device="cuda", dtype=torch.bfloat16)
    expected = rms_norm(x, (1000,), None, 1e-6)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = rms_norm(x, (1000,), None, 1e-6)
    y.zero_()
    graph.replay()
    torch.testing.assert_close(y, expected)
