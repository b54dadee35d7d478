"""Attention's passes, their FLOPs against torch's count of the plain formula."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from peakward.lab.measure.calibration import attention
from peakward.lab.measure.calibration.attempt import outcome
from peakward.lab.measure.calibration.attention import Size, call, flops
from peakward.lab.measure.calibration.product import types

SIZE = Size(2, 3, 8)


def plain(q, k, v):
    """Without a mask and without recomputation: all four products of a backward pass."""
    scores = torch.matmul(q, k.transpose(-1, -2)) / attention.HEAD_DIM**0.5
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def test_flops_are_half_of_those_without_a_mask():
    operands = [
        torch.randn(SIZE.batch, SIZE.heads, SIZE.seq_len, attention.HEAD_DIM, requires_grad=True)
        for _ in range(3)
    ]
    with FlopCounterMode(display=False) as forward:
        out = plain(*operands)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    assert flops(SIZE, "forward") == forward.get_total_flops() / 2
    assert flops(SIZE, "backward") == backward.get_total_flops() / 2


def test_a_pass_is_causal_attention_of_the_size_and_type():
    for each in types("cpu"):
        torch.manual_seed(0)
        found = call(each, "forward", SIZE, "cpu")()
        torch.manual_seed(0)
        shape = (SIZE.batch, SIZE.heads, SIZE.seq_len, attention.HEAD_DIM)
        _, _, v = (torch.randn(shape).to(each.dtype) for _ in range(3))
        assert (found.shape, found.dtype) == (v.shape, each.dtype)
        # The first query sees the first key alone.
        torch.testing.assert_close(found[..., 0, :], v[..., 0, :], rtol=0.01, atol=0.01)
        gradients = call(each, "backward", SIZE, "cpu")()
        assert [gradient.shape for gradient in gradients] == [v.shape] * 3


def test_rates_are_of_both_passes_at_every_length_and_no_tf32(monkeypatch):
    monkeypatch.setitem(attention.SIZES, "cpu", (Size(1, 1, 4), Size(1, 1, 8)))
    monkeypatch.setattr(attention, "device_s", lambda call, device_type: 0.5)
    rates = [outcome(each, "attention") for each in attention.attempts("cpu")]
    assert [(rate.compute_type, rate.seq_len, rate.pass_) for rate in rates] == [
        (name, length, pass_)
        for name in ("fp32", "bf16", "fp16")
        for length in (4, 8)
        for pass_ in ("forward", "backward")
    ]
    assert rates[0].flops_per_s == 2 * 4 * 4 * attention.HEAD_DIM / 0.5
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    on_gpu = [each.figure.split()[0] for each in attention.attempts("cuda")]
    assert set(on_gpu) == {"fp32", "bf16", "fp16"}


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_two_lengths(device_type):
    short, long = (size.seq_len for size in attention.SIZES[device_type])
    assert long == 4 * short
