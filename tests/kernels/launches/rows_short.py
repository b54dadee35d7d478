"""What the kernels over rows are started with for rows of one element: that these compile at all, spills
or not."""

from collections.abc import Callable

import torch
from torch import Tensor

from launch import Launch
from peakward.kernels.ops.layer_norm.triton import layer_norm, layer_norm_backward
from peakward.kernels.ops.rms_norm.triton import rms_norm, rms_norm_backward
from peakward.kernels.ops.softmax.triton import softmax, softmax_backward


def _launch(start: Callable[[Tensor, Tensor], object]) -> Launch:
    x = torch.empty(5, 1, dtype=torch.bfloat16, device="meta")
    r = torch.empty(5, device="meta")
    return Launch(lambda: start(x, r), registers=255, shared_bytes=32 << 10, stack_bytes=208)


LAUNCHES = {
    name: _launch(start)
    for name, start in {
        "softmax": lambda x, _: softmax(x, x.dtype),
        "softmax backward": lambda x, _: softmax_backward(x, x, x.dtype),
        "rms_norm": lambda x, _: rms_norm(x, None, x[0], 1e-6),
        "rms_norm backward": lambda x, r: rms_norm_backward(x, None, x, x[0], r),
        "layer_norm": lambda x, _: layer_norm(x, None, x[0], x[0], 1e-6),
        "layer_norm backward": lambda x, r: layer_norm_backward(x, None, x, x[0], x[0], r, r),
    }.items()
}
