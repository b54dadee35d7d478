"""What rounding weights to steps does to a result, found by rounding them at random.

An element of a group lies anywhere between two multiples of the group's step, so its error is as good as
drawn: uniform, half a step to either side, whatever the others are (Widrow & Kollár 2008, "Quantization
Noise", chapter 5). The oracle with such an error added to each weight errs as the quantised model should,
by as much as this model, at this width and depth, makes of it; nothing of how the quantised one is stored
or multiplied is in it.
"""

import torch
from torch import Tensor

from peakward.kernels.ops.quantized_matmul import reference
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.quantised_linear import KINDS
from peakward.records.case import StoredWeights


def perturb(model: Decoder, weights: StoredWeights, *, seed: int) -> None:
    """Add to each weight of the blocks, in place, what rounding to its group's step may."""
    generator = torch.Generator(model.embedding.weight.device).manual_seed(seed)
    for module in model.blocks.modules():
        if type(module) is torch.nn.Linear:
            weight = module.weight.data
            drawn = torch.rand(
                weight.shape, generator=generator, device=weight.device, dtype=weight.dtype
            )
            weight.add_(drawn.sub_(0.5).mul_(_steps(weight, weights)))


def _steps(weight: Tensor, weights: StoredWeights) -> Tensor:
    """(n, k): of each element the distance of the numbers that it is rounded to."""
    _, scale = KINDS[weights].quantised(weight)
    return reference.by_column(scale, weight.shape[1], weight.dtype)
