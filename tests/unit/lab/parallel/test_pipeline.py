"""The stages of a pipeline, in one process."""

from typing import get_args

import pytest
import torch

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.models import decoder
from peakward.lab.parallel.pipeline import Stage
from peakward.records.model_shape import Positions


@pytest.mark.parametrize("positions", get_args(Positions))
def test_stages_one_behind_another_are_the_decoder(positions, make_shape):
    shape = make_shape(positions=positions)
    how = {"attention": implementation("naive"), "device": "cpu", "dtype": torch.float64}
    model = decoder.build(shape, seed=0, **how)
    ids = torch.randint(shape.vocab_size, (2, 9), generator=torch.Generator().manual_seed(1))
    assert shape.n_layers == 2
    assert torch.equal(Stage(model, 1, 2)(Stage(model, 0, 1)(ids)), model(ids))
