"""Mixed precision by CUDA's lists, and numbers that are copied to the device."""

import pytest
import torch
from torch import nn

from peakward.lab.models.module_capture import capture_module
from peakward.records.op_graph import COPIED_FROM_HOST, WAITS


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


class Numbers(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make, self.linear = make, nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x) * self.make(x).to(x.dtype)


def waits(make, **settings):
    found = capture_module(Numbers(make), (torch.randn(4, 8),), **settings).graph.operators
    return [(each.name, each.count) for each in found if each.name in WAITS]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.tensor(2.0, device=x.device),
        lambda x: torch.tensor(data=2, dtype=torch.int32, device=x.device),
        lambda x: torch.as_tensor([2.0] * 8, device=x.device),
        lambda x: x.new_tensor(2.0),
    ],
)
def test_numbers_for_the_device_are_copied_to_it_and_the_host_waits(make):
    assert waits(make) == [(COPIED_FROM_HOST, 1)]


@pytest.mark.parametrize(
    "make",
    [
        lambda _x: torch.tensor(2.0),
        lambda _x: torch.tensor(2.0, device="cpu"),
        lambda x: torch.as_tensor(x, device=x.device),
        lambda x: torch.full((), 2.0, device=x.device),
        lambda x: x.new_full((), 2.0),
    ],
)
def test_what_stays_on_the_host_or_is_made_on_the_device_is_not(make):
    assert waits(make) == []


def test_an_optimizer_s_count_of_steps_stays_on_the_host():
    assert waits(lambda x: x.sum(), pass_="train_step", loss=lambda y: y.sum()) == []


def test_numbers_that_are_copied_are_known():
    """As a mask's, which may decide what runs."""

    class Deciding(nn.Module):
        def forward(self, x):
            return x.exp() if torch.tensor([3, 5], device=x.device).max() > 4 else x.sin()

    names = {each.name for each in capture_module(Deciding(), (torch.randn(4, 8),)).graph.operators}
    assert WAITS | {"aten.exp"} <= names
