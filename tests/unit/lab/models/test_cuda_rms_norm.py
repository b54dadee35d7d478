"""RMSNorm as one operator each way, while a module is captured."""

import torch
from torch import nn

from peakward.lab.models.module_capture import capture_module


def norms(module, x, **settings):
    found = capture_module(module, (x,), **settings).graph.operators
    return {each.name: each for each in found if "rms_norm" in each.name}


def test_it_is_one_operator_each_way_with_cudas_names_and_bytes():
    """Forward reads x and the weight and writes y and a figure a row; backward reads the gradient, x,
    those figures and the weight, and writes both gradients."""
    module, x = nn.RMSNorm(64), torch.randn(8, 4, 64, requires_grad=True)
    found = norms(nn.Sequential(nn.Linear(64, 64), module), x, pass_="forward_backward", loss=_sum)
    assert set(found) == {"aten._fused_rms_norm", "aten._fused_rms_norm_backward"}
    forward, backward = found["aten._fused_rms_norm"], found["aten._fused_rms_norm_backward"]
    rows, row = 32, 64 * 4
    assert (forward.bytes_read, forward.bytes_written) == (rows * row + row, rows * row + rows * 4)
    assert backward.bytes_read == 4 + rows * row + rows * 4 + row, "a sum's gradient is one number"
    assert backward.bytes_written == rows * row + row
    assert (forward.module, forward.phase) == ("*", "forward")


def test_without_a_weight_there_is_no_gradient_of_one():
    module = nn.Sequential(nn.Linear(64, 64), nn.RMSNorm(64, elementwise_affine=False))
    found = norms(module, torch.randn(8, 64), pass_="train_step", loss=_sum)
    assert found["aten._fused_rms_norm_backward"].bytes_written == 8 * 64 * 4


def test_over_several_dimensions_or_of_two_types_torch_takes_it_apart():
    assert norms(nn.RMSNorm((4, 64)), torch.randn(8, 4, 64)) == {}
    assert norms(nn.RMSNorm(64), torch.randn(8, 64).bfloat16()) == {}


def test_afterwards_it_computes_as_ever():
    x = torch.randn(4, 8)
    before = nn.functional.rms_norm(x, (8,))
    capture_module(nn.RMSNorm(8), (x,))
    assert torch.equal(nn.functional.rms_norm(x, (8,)), before)


def _sum(y):
    return y.sum()
