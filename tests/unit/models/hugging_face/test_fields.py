"""Activations by their names in transformers."""

import pytest
import torch
from transformers.activations import ACT2FN

from peakward.lab.models import decoder
from peakward.models.hugging_face.fields import ACTIVATIONS, activation
from peakward.records.errors import PeakwardError


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_ours_computes_what_theirs_does(name):
    x = torch.linspace(-4.0, 4.0, 101, dtype=torch.float64)
    torch.testing.assert_close(decoder.ACTIVATIONS[activation(name)](x), ACT2FN[name](x))


def test_an_activation_of_no_shape_is_refused():
    with pytest.raises(PeakwardError, match=r"expected an activation of silu, .*got 'relu2'"):
        activation("relu2")
