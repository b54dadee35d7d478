"""Mixed precision by CUDA's lists."""

import pytest
import torch
from torch import nn

from peakward.lab.models.module_capture import capture_module


def dtypes(module, x, name):
    found = capture_module(module, (x,), autocast=torch.bfloat16).graph.operators
    return {operand.dtype for each in found if each.name == name for operand in each.inputs}


@pytest.mark.parametrize(
    ("after", "name"),
    [
        (nn.LayerNorm(8), "aten.native_layer_norm"),
        (nn.RMSNorm(8), "aten._fused_rms_norm"),
        (nn.Softmax(-1), "aten._softmax"),
        (nn.LogSoftmax(-1), "aten._log_softmax"),
    ],
)
def test_norms_and_softmax_compute_in_fp32(after, name):
    module = nn.Sequential(nn.Linear(8, 8), after)
    assert dtypes(module, torch.randn(4, 8), name) == {"float32"}


def test_products_and_activations_do_not():
    module = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    x = torch.randn(4, 8)
    assert dtypes(module, x, "aten.addmm") == {"bfloat16"}
    assert dtypes(module, x, "aten.gelu") == {"bfloat16"}


def test_without_it_nothing_is_widened():
    module = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)).bfloat16()
    found = capture_module(module, (torch.randn(4, 8).bfloat16(),)).graph.operators
    assert {operand.dtype for each in found for operand in each.inputs} == {"bfloat16"}


@pytest.mark.parametrize(
    ("settings", "dtype"), [({"dtype": torch.bfloat16}, "bfloat16"), ({}, "float16")]
)
def test_a_module_s_own_autocast_for_cuda_is_on(settings, dtype):
    """Also where torch has no CUDA; its type there is by default fp16."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            with torch.autocast("cuda", **settings):
                return self.linear(x)

    found = capture_module(Mixed(), (torch.randn(4, 8),)).graph.operators
    (product,) = [each for each in found if each.flops]
    assert {each.dtype for each in product.inputs} == {dtype}
