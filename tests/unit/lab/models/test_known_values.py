"""Branches of a module that follow from constants and from what can be drawn."""

import pytest
import torch
from torch import nn

from peakward.lab.models.module_capture import capture_module
from peakward.records.errors import PeakwardError
from peakward.records.op_graph import READ_BY_HOST


def names(capture):
    return {each.name for each in capture.graph.operators}


def test_a_mask_of_fractions_made_of_constants_is_known():
    """As OPT's: ones, unless the caller gives a mask."""

    class Masking(nn.Module):
        def forward(self, x):
            mask = torch.ones(x.shape[:2], device=x.device)
            return x.exp() if mask.all() else x.sin()

    found = capture_module(Masking(), (torch.empty(2, 8, 4),))
    assert {"aten.exp", READ_BY_HOST} <= names(found)
    assert "aten.sin" not in names(found)


class Dropping(nn.Module):
    """Layers that are left out with a probability, drawn on the host."""

    def __init__(self, probability):
        super().__init__()
        self.probability, self.linear = probability, nn.Linear(4, 4)

    def forward(self, x):
        return x if torch.rand([]) < self.probability else self.linear(x)


@pytest.mark.parametrize(("probability", "dropped"), [(0.0, False), (1.0, True)])
def test_a_layer_that_is_never_or_always_dropped_is_known(probability, dropped):
    """The draw is read on the host, which waits for nothing."""
    found = capture_module(nn.Sequential(Dropping(probability), nn.ReLU()), (torch.empty(2, 4),))
    assert ("aten.addmm" not in names(found)) == dropped
    assert READ_BY_HOST not in names(found)


def test_a_layer_that_may_be_dropped_is_refused():
    with pytest.raises(PeakwardError, match="do not depend on values"):
        capture_module(Dropping(0.1), (torch.empty(2, 4),))


def test_a_draw_ends_the_graph_of_a_model_that_is_compiled_whole():
    module = Dropping(0.0)
    with pytest.raises(PeakwardError, match="reads no number which it draws"):
        capture_module(module, (torch.empty(2, 4),), compiled=[module])
