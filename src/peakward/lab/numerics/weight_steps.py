"""Measures how rounding weights to steps changes a result, by rounding them at random.

An element of a group lies anywhere between two multiples of the group's step. Its error is therefore as
good as drawn: uniform, half a step to either side, whatever the other errors are (Widrow & Kollár 2008,
"Quantization Noise", chapter 5). With such an error added to each weight, the oracle errs as much as
the quantised model should, at this width and depth. The estimate does not depend on how the quantised
model stores or multiplies its weights.
"""

import torch
from torch import Tensor

from peakward.kernels.ops.quantized_matmul import reference
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.quantised_linear import KINDS
from peakward.records.case import StoredWeights


def perturb(model: Decoder, weights: StoredWeights, *, seed: int) -> None:
    """Adds to each weight of the blocks, in place, a random error as large as rounding to its group's
    step makes."""
    generator = torch.Generator(model.embedding.weight.device).manual_seed(seed)
    for module in model.blocks.modules():
        if type(module) is torch.nn.Linear:
            weight = module.weight.data
            drawn = torch.rand(
                weight.shape, generator=generator, device=weight.device, dtype=weight.dtype
            )
            weight.add_(drawn.sub_(0.5).mul_(_steps(weight, weights)))


def _steps(weight: Tensor, weights: StoredWeights) -> Tensor:
    """The distance between the numbers that each element is rounded to, (n, k)."""
    _, scale = KINDS[weights].quantised(weight)
    return reference.by_column(scale, weight.shape[1], weight.dtype)
