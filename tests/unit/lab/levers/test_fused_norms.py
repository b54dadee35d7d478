"""The norms of any module in Peakward's kernels, from outside; in Triton's interpreter."""

import copy

import pytest
import torch
from torch import nn

from peakward.kernels import fuse_norms
from peakward.kernels.ops.norm_modules.api import FusedLayerNorm, FusedRMSNorm
from peakward.lab.levers.prepare import prepare
from peakward.lab.numerics.verify import verify
from peakward.levers import norm
from peakward.records.errors import PeakwardError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")


def tree():
    return nn.ModuleDict(
        {
            "rms": nn.RMSNorm(8),
            "layers": nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)),
            "over two": nn.LayerNorm((4, 8)),
            "batch": nn.BatchNorm1d(8),
        }
    )


def test_norms_over_a_last_dimension_are_replaced_and_nothing_else():
    module = tree()
    names = [name for name, _ in module.named_parameters()]
    assert fuse_norms(module) == 2
    assert type(module["rms"]) is FusedRMSNorm
    assert type(module["layers"][1]) is FusedLayerNorm
    assert type(module["over two"]) is nn.LayerNorm
    assert [name for name, _ in module.named_parameters()] == names


def test_torchs_are_left_as_they_are():
    module = tree()
    norm.AXIS.to_module(module, "torch")
    assert type(module["rms"]) is nn.RMSNorm


def test_a_copy_is_changed_and_not_the_original():
    module = tree()
    assert fuse_norms(copy.deepcopy(module)) == 2
    assert type(module["rms"]) is nn.RMSNorm
    assert "forward" not in vars(module["rms"])


def test_a_module_without_norms_is_refused():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(
        PeakwardError, match=r"expected a module with norms.*got Sequential without"
    ):
        norm.AXIS.to_module(module, "fused")


@pytest.mark.parametrize("source", ["py:tiny_gpt:build", "hf:llama", "hf:gpt2"])
def test_the_numbers_of_a_users_module_hold(source, make_module_case):
    if source.startswith("hf:"):
        pytest.importorskip("transformers")
    base = make_module_case(source, pass_="forward_backward")
    candidate = make_module_case(source, pass_="forward_backward", norm="fused")
    found = verify(base, candidate, "reordered")
    assert (found.verdict, found.reason) == ("holds", None)
    assert any(each.candidate_error != each.base_error for each in found.errors)


def test_a_step_of_it_runs_with_blocks_recomputed(make_module_case):
    settings = {"norm": "fused", "checkpointing": "every-block"}
    losses = []
    for chosen in ({}, settings):
        with prepare(make_module_case("py:tiny_gpt:build", **chosen)) as step:
            step.model.eval()
            step.step()
            losses.append(step.loss())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
