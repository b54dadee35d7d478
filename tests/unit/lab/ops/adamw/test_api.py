"""What the optimiser refuses."""

import pytest
import torch

from peakward.lab.ops.adamw.api import TritonAdamW


def test_refuses_parameters_off_the_gpu():
    with pytest.raises(ValueError, match="expected contiguous floating-point parameters on CUDA"):
        TritonAdamW([torch.nn.Parameter(torch.zeros(3))])
