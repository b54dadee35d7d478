"""Small random decoders in fp64, whose attention prefers some positions by far."""

import pytest
import torch

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.models import decoder


@pytest.fixture
def make_decoder(make_shape):
    def make(changes, attention="naive", **functions):
        model = decoder.build(
            make_shape(**changes),
            attention=implementation(attention) if isinstance(attention, str) else attention,
            device="cpu",
            dtype=torch.float64,
            seed=0,
            **functions,
        ).eval()
        with torch.no_grad():
            for block in model.blocks:
                block.attention.qkv.weight.mul_(8)
        return model

    return make
