"""The product with a weight of 8 bits on a CPU, by torch's own operators.

For few rows in bf16 torch widens the weight in registers (`_weight_int8pack_mm`), so that it is read once and
in 8 bits. For more rows that loop is slower than a dense product, and in other types it always is: there some
rows of the weight at a time are widened in a core's cache, and multiplied as dense ones.
"""

import torch
from torch import Tensor

MOST_ROWS = 16
"""With a weight of 8,192 × 2,048 on a core of an AMD EPYC torch's loop takes 3.0 ms for 16 rows and 6.1 for
32; slices that are widened in memory take 3.9 and 5.0."""
COLUMNS = 32
"""The loop is asked for rows of a multiple of these columns. With AVX-512 torch 2.13 reads 16 columns at a
time, and beyond the end of a row that these do not divide: with 24 columns the process ended."""
SLICE_ELEMENTS = 1 << 20
"""The elements that are widened together. Of 131,072 to 2,097,152 these were the fastest for most numbers of
rows: for one in fp32 1.6 ms, where a dense weight takes 3.4."""


def int8_matmul(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """See `api.int8_matmul`; x (m, k), each row contiguous → (m, n)."""
    n, k = weight.shape
    few = 0 < len(x) <= MOST_ROWS and k % COLUMNS == 0
    if few and x.dtype == torch.bfloat16 and len(scale) == 1:
        return torch._weight_int8pack_mm(x.contiguous(), weight, scale[0].to(x.dtype))
    # Without their scales sums could overflow in fp16, and a CPU multiplies it more slowly than fp32.
    rows = x.float() if x.dtype == torch.float16 else x
    out, n_rows = x.new_empty(len(x), n), max(1, SLICE_ELEMENTS // k)
    for first in range(0, n, n_rows):
        part = slice(first, first + n_rows)
        out[:, part] = _product(rows, weight[part].to(rows.dtype), scale[:, part])
    return out


def _product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """x times the transposed weight (n, k), which is widened and lacks its scale."""
    if len(scale) == 1:
        return (x @ weight.mT).mul_(scale[0])
    grouped = weight.view(len(weight), len(scale), -1)
    return x @ grouped.mul_(scale.t()[..., None]).view(weight.shape).mT
