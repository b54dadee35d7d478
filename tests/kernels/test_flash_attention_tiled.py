"""The tiled reference against attention's definition, in fp64."""

import pytest
import torch

from flash_cases import Case, draw, exact
from oracle import error
from peakward.kernels.ops.attention import reference
from peakward.kernels.ops.flash_attention import tiled

CASES = [
    Case(n_batches=2, n_heads=4, n_kv_heads=2, q_len=130, k_len=130),
    Case(q_len=17, k_len=100, head_dim=24),
    Case(q_len=100, k_len=17),
    Case(n_heads=2, q_len=70, k_len=150, window=65, alibi=True),
    Case(n_heads=2, q_len=70, k_len=33, causal=False, alibi=True),
    Case(q_len=3, k_len=0),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_is_attention(case):
    drawn = draw(case, torch.float64)
    inputs = [each.detach().requires_grad_() for each in drawn[:3]]
    out, lse = tiled.attention(*inputs, drawn.slopes, case.rule)
    seen = lse > -torch.inf
    loss = (out * drawn.dout).sum() + (lse * drawn.dlse)[seen].sum()
    gradients = torch.autograd.grad(loss, inputs)
    expected, exact_lse = exact(drawn, case, with_dlse=True)
    assert torch.equal(seen, exact_lse > -torch.inf)
    assert error(lse[seen], exact_lse[seen]) < 1e-14
    for mine, oracle in zip((out, *gradients), expected, strict=True):
        assert error(mine, oracle) < 1e-14


@pytest.mark.parametrize("window", [None, 1, 9])
def test_is_what_the_reference_decoder_attends_with(window):
    case = Case(n_heads=4, n_kv_heads=2, q_len=70, k_len=70, window=window)
    q, k, v = draw(case, torch.float64)[:3]
    out, _ = tiled.attention(q, k, v, None, case.rule)
    expected = reference.attention(q, k, v, window=window, bias=None)
    assert error(out, expected) < 1e-14
