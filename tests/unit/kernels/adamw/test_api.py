"""What the optimiser refuses."""

import pytest
import torch

from peakward.kernels.ops import launchable
from peakward.kernels.ops.adamw.api import TritonAdamW


def test_refuses_parameters_off_the_gpu(monkeypatch):
    monkeypatch.setattr(launchable, "interprets", lambda: False)
    with pytest.raises(ValueError, match="TritonAdamW: expected tensors on a CUDA device, got cpu"):
        TritonAdamW([torch.nn.Parameter(torch.zeros(3))])


@pytest.mark.parametrize(
    ("parameter", "got"),
    [
        (torch.zeros(3, dtype=torch.float64), r"got torch.float64 with strides \(1,\)"),
        (torch.zeros(3, 2).t(), r"got torch.float32 with strides \(1, 2\)"),
    ],
)
def test_refuses_what_the_kernel_cannot_take(parameter, got):
    with pytest.raises(ValueError, match=f"expected contiguous parameters in float32, .* {got}"):
        TritonAdamW([{"params": [torch.nn.Parameter(parameter)]}])
