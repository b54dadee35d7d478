"""Flash attention in Triton, for every GPU from compute capability 8.0: FlashAttention-2 (Dao 2023).

Scores are taken in base 2, with scale·log2(e) folded into one multiply-add before exp2. Blocks in
which every query sees every key take no mask arithmetic: each loop is cut into what comes before,
within and after them. A head is read in two parts, both powers of two (80 = 64 + 16), so that it
costs no more products than its width asks for.
"""

from peakward.kernels.ops.flash_attention.triton.backward import backward
from peakward.kernels.ops.flash_attention.triton.forward import forward

__all__ = ["backward", "forward"]
