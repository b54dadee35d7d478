"""Products with weights of 8 and 4 bits whose bytes are all that moves: they are widened in registers.

The weight is the left operand of a product on tensor cores, so that few rows of x are its narrow side
(as in Marlin, Frantar et al. 2024, arXiv:2408.11743). What a lane of a warp loads by 16 bytes is what
its part of the operand is made of: which column of the weight is which of the product is free as long
as x's are taken alike, so that nothing of the weight is exchanged between lanes. Where x is in 16 bits a
weight of 8 bits is not widened: one row of x is multiplied along the weight's rows (`bytes`), more are split
into digits of a byte (`digits`). Where channels alone do not fill the GPU, columns are split over programs,
and a second kernel adds their results.
"""

from peakward.kernels.ops.quantized_matmul.triton.launch import int4_matmul, int8_matmul
from peakward.kernels.ops.quantized_matmul.triton.settings import (
    H100_MULTIPROCESSORS,
    Digits,
    Direct,
    Row,
    Shared,
    byte_settings_for,
    word_settings_for,
)

__all__ = [
    "H100_MULTIPROCESSORS",
    "Digits",
    "Direct",
    "Row",
    "Shared",
    "byte_settings_for",
    "int4_matmul",
    "int8_matmul",
    "word_settings_for",
]
