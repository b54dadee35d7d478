"""Flash attention on Hopper in Gluon: FlashAttention-3's division of labour (Shah et al. 2024).

One warp brings tiles by the copy engine; two or three warpgroups, of 64 rows each, multiply on the
tensor cores and take softmax in turns, so that the products of one hide the exponentials of
another. Programs stay on their multiprocessor and draw tiles, heaviest first, from a counter.

In place of the seven products of a backward pass without atomics five are taken: every block of
keys adds its share of dq in fp32. Which order they come in is not fixed, and so not its last bits.
"""

from peakward.kernels.ops.flash_attention.hopper.backward import backward
from peakward.kernels.ops.flash_attention.hopper.forward import forward

__all__ = ["backward", "forward"]
