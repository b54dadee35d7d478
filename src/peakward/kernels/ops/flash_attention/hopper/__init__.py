"""Flash attention on Hopper in Gluon: FlashAttention-3's division of labour (Shah et al. 2024).

One warp fetches tiles by the copy engine. Two or three warpgroups, of 64 rows each, multiply on the
tensor cores and compute softmax in turns, so the products of one hide the exponentials of another.
Programs stay on their multiprocessor and draw tiles, heaviest first, from a counter.

A backward pass without atomics takes seven products; this one takes five, and every block of keys adds
its share of dq in fp32. The order of these additions is not fixed, and so dq's last bits are not
either.
"""

from peakward.kernels.ops.flash_attention.hopper.backward import backward
from peakward.kernels.ops.flash_attention.hopper.forward import forward

__all__ = ["backward", "forward"]
