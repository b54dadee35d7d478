"""The host's costs of a captured module."""

import pytest
import torch
from torch import nn

from peakward.lab.models.module_capture import capture_module
from peakward.prediction.time.dispatch import OPERATOR
from peakward.prediction.time.module_dispatch import MODULE, NODE, calls


def test_each_operator_module_and_node_costs_its_own():
    """Two linear layers in a Sequential, which is the module itself and not counted: two calls."""
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    found = capture_module(module, (torch.randn(4, 8),), pass_="train_step", loss=lambda y: y.sum())
    totals = found.graph.totals(lambda each: each.phase)
    n_forward, n_backward = (totals[phase].n_calls for phase in ("forward", "backward"))
    assert n_forward == 3, "two products and the sum"
    assert calls(found, "forward") == pytest.approx(3 * OPERATOR + 2 * MODULE)
    assert calls(found, "backward") == pytest.approx(n_backward * OPERATOR + 3 * NODE)
    assert calls(found, "optimizer") == pytest.approx(290 + 1.2 * 4), "four tensors"
