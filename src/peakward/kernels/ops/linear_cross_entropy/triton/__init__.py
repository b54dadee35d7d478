"""A projection onto the vocabulary whose logits stay in the registers that they were computed in.

The loss computes a tile of logits and leaves of every row of it the maximum and the sum of
exponentials, 8 bytes for block_vocab logits; another kernel puts a row's together (Wijmans et al. 2024,
"Cut Your Losses in Large-Vocabulary Language Models", algorithm 2, without its locks: a tile has a
place of its own, so that the result is the same every time). The gradient computes a tile again and
stores what becomes of it.
"""

from peakward.kernels.ops.linear_cross_entropy.triton.partials import losses
from peakward.kernels.ops.linear_cross_entropy.triton.scaling import scaled
from peakward.kernels.ops.linear_cross_entropy.triton.settings import (
    Settings,
    gradient_settings_for,
    settings_for,
)
from peakward.kernels.ops.linear_cross_entropy.triton.slopes import gradient

__all__ = ["Settings", "gradient", "gradient_settings_for", "losses", "scaled", "settings_for"]
