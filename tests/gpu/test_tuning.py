"""Kernels tuned on the GPU that is there: right, kept, and not looked for again."""

import json

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")
from peakward.lab.ops import tuning
from peakward.lab.ops.flash_attention.api import flash_attention
from peakward.lab.ops.rms_norm.api import rms_norm

pytestmark = pytest.mark.gpu


@pytest.fixture
def kept(monkeypatch, tmp_path):
    monkeypatch.setenv("PEAKWARD_TUNE_KERNELS", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuning._kept.cache_clear()
    yield tuning.path_of(torch.device("cuda"))
    tuning._kept.cache_clear()


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


@pytest.mark.parametrize(
    "call, size, n_kept", [(attention, 1000, 3), (norm, 1000, 2), (norm, 20000, 2)]
)
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
