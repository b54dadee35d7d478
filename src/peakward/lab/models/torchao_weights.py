"""Weights of 8 and 4 bits as torchao keeps them (github.com/pytorch/ao, torchao/quantization).

Our own are held against them. The extra `quant` installs torchao. For each number of bits this is its
strongest choice. In 8 bits an output has a scale. In 4 bits a group has a scale and an offset, sought for the
least error of the weight (HQQ), and torch's own kernel for tensor cores multiplies (`_weight_int4pack_mm`).
"""

from typing import Any

import torch
from torch import Tensor, nn

BITS, MIDDLE = 4, 8
"""torchao's numbers of 4 bits run from 0 to 15, and its offset is the value of 8."""


def int8_linear(weight: Tensor) -> nn.Module:
    """A linear layer whose weight (n, k) is in int8 with a scale for each output."""
    from torchao.quantization import Int8WeightOnlyConfig

    return _quantised(weight, Int8WeightOnlyConfig())


def int4_linear(weight: Tensor, *, group: int) -> nn.Module:
    """A linear layer whose weight (n, k) of bf16, on a GPU, is in int4 by groups of inputs."""
    from torchao.quantization import Int4WeightOnlyConfig

    config = Int4WeightOnlyConfig(
        group_size=group,
        int4_packing_format="tile_packed_to_4d",
        int4_choose_qparams_algorithm="hqq",
    )
    return _quantised(weight, config)


def int8_rounded(weight: Tensor) -> Tensor:
    """The numbers that `int8_linear` stands for, (n, k) in the weight's type."""
    found: Any = int8_linear(weight).weight
    return found.dequantize().to(weight.dtype)


def int4_rounded(weight: Tensor, *, group: int) -> Tensor:
    """The numbers that `int4_linear` stands for, (n, k) in the weight's type, on any device."""
    from torchao.quantization.quant_primitives import _choose_qparams_and_quantize_affine_hqq

    stored, scale, offset, _ = _choose_qparams_and_quantize_affine_hqq(
        weight.bfloat16(),
        nbits=BITS,
        group_size=group,
        axis=1,
        compute_dtype=torch.bfloat16,
        device=str(weight.device),
        verbose=False,
        raw_output=False,
    )
    numbers = stored.to(weight.dtype).view(-1, group) - MIDDLE
    scales, offsets = (each.to(weight.dtype).view(-1, 1) for each in (scale, offset))
    return (numbers * scales + offsets).view(weight.shape)


def _quantised(weight: Tensor, config: object) -> nn.Module:
    from torchao.quantization import quantize_

    n, k = weight.shape
    with torch.device("meta"):
        made = nn.Linear(k, n, bias=False)
    made.weight = nn.Parameter(weight, requires_grad=False)
    quantize_(made, config)
    return made
