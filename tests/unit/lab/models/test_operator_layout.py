"""How operands lie in memory."""

import pytest
import torch

from peakward.lab.models.op_recorder import is_causal, scattered

X = torch.empty(8, 16)


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        ((X, X.clone()), False),
        ((X, torch.tensor(2.0)), False),  # One element lies nowhere else.
        ((X.t(), X.clone().t()), False),  # Alike, in whatever order.
        ((X, X.view(16, 8)), True),
        ((X, X.clone().t().contiguous().t()), True),
        ((X[:, :8], X[:, 8:]), True),  # Halves of rows leave gaps.
        ((X[:, :8].contiguous(), X[:, 8:]), True),
        ((X, torch.empty(16)), True),  # Broadcast.
        ((X[:1].expand(8, 16),), True),
        ((torch.empty(4, 1, 8),), False),
    ],
)
def test_alike_and_without_gaps_or_not(operands, expected):
    assert scattered(operands) is expected


def test_fused_attention_says_whether_it_masks():
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    q = torch.empty(1, 1, 2, 8)
    assert is_causal(attention, (q, q, q, 0.0, True), {})
    assert not is_causal(attention, (q, q, q), {})
    assert is_causal(attention, (q, q, q), {"is_causal": True})
    assert is_causal(torch.ops.aten.mm.default, (q, q), {})
