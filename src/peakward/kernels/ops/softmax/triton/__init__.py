"""Softmax in one pass over memory.

Short rows share a tile. Those of up to `MOST_COLUMNS` stay in registers between the maximum, the sum and
the quotient. Wider ones are read twice, in pieces: once for both maximum and sum (Milakov & Gimelshein
2018, "Online normalizer calculation for softmax"), kept a lane apart so that no piece waits for another's
reduction, and once for the quotient, from the last piece back, of which the caches still have most.
"""

from peakward.kernels.ops.softmax.triton.backward import softmax_backward
from peakward.kernels.ops.softmax.triton.forward import softmax
from peakward.kernels.ops.softmax.triton.settings import MOST_COLUMNS, settings_for

__all__ = ["MOST_COLUMNS", "settings_for", "softmax", "softmax_backward"]
