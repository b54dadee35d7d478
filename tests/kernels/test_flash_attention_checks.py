"""What the public functions refuse."""

import pytest
import torch

from peakward.kernels.ops.flash_attention import api

Q = torch.empty(2, 4, 8, 16)


def packed(**changed):
    starts = torch.tensor([0, 8], dtype=torch.int32)
    tokens = torch.empty(8, 4, 16)
    options = {
        "q": tokens,
        "k": tokens,
        "v": tokens,
        "cu_seqlens_q": starts,
        "cu_seqlens_k": starts,
        "max_seqlen_q": 8,
        "max_seqlen_k": 8,
        "causal": True,
        **changed,
    }
    return api.flash_attention_varlen(**options)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q": Q[0]}, r"expected q of \(batch, heads, rows, head_dim\), got \(4, 8, 16\)"),
        ({"k": Q.half()}, "expected k in q's torch.float32, got torch.float16"),
        ({"q": Q.double(), "k": Q.double(), "v": Q.double()}, "float64"),
        ({"k": Q[:1], "v": Q[:1]}, "expected k of q's batch of 2, got 1"),
        ({"k": Q[:, :, :3]}, "expected k and v of one shape"),
        ({"k": Q[:, :3], "v": Q[:, :3]}, "expected heads that kv_heads divide, got 4 and 3"),
        ({"q": Q.mT.contiguous().mT}, "expected q with a contiguous last dimension"),
        ({"q": Q[..., :8], "k": Q[..., :8], "v": Q[..., :8]}, "head_dim from 16 to 256, got 8"),
        ({"window": 4, "causal": False}, "expected causal=True with a window"),
        ({"window": 0}, "expected a window of at least 1, got 0"),
        ({"scale": 0.0}, "expected a scale above 0, got 0.0"),
        ({"alibi_slopes": torch.ones(3)}, r"expected alibi_slopes of \(heads,\), got \(3,\)"),
        ({"alibi_slopes": torch.ones(4).half()}, "contiguous in float32, got torch.float16"),
        ({"alibi_slopes": torch.ones(4, requires_grad=True)}, "that need no gradient"),
        ({"implementation": "best"}, "expected an implementation of triton.*, got 'best'"),
    ],
)
def test_refuses(changed, message):
    with pytest.raises(ValueError, match=message):
        api.flash_attention(**{"q": Q, "k": Q, "v": Q, "causal": True, **changed})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q": Q}, r"expected q of \(tokens, heads, head_dim\)"),
        ({"cu_seqlens_q": torch.tensor([0, 8])}, r"expected cu_seqlens_q contiguous .* of int32"),
        ({"cu_seqlens_k": torch.zeros(3, dtype=torch.int32)}, "of one batch \\+ 1, got 2 and 3"),
        ({"max_seqlen_k": -1}, "expected max_seqlen_k of at least 0, got -1"),
    ],
)
def test_refuses_packed(changed, message):
    with pytest.raises(ValueError, match=message):
        packed(**changed)


@pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is interpreted here")
def test_refuses_a_device_that_no_kernel_runs_on(monkeypatch):
    knobs = pytest.importorskip("triton").knobs
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    with pytest.raises(ValueError, match="expected tensors on a CUDA device, got cpu"):
        api.flash_attention(Q, Q, Q, causal=True)
