"""Cross-entropy in one online pass over the logits, and its gradient in one more."""

from peakward.kernels.ops.cross_entropy.triton.backward import gradient
from peakward.kernels.ops.cross_entropy.triton.both import losses_and_gradient
from peakward.kernels.ops.cross_entropy.triton.online import forward, losses, mean
from peakward.kernels.ops.cross_entropy.triton.settings import Settings

__all__ = ["Settings", "forward", "gradient", "losses", "losses_and_gradient", "mean"]
