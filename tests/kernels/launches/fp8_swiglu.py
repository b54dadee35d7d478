"""What SwiGLU of fp8 products is started with."""

import torch

from launch import Launch
from peakward.kernels.ops.fp8_linear.scales import LENGTH
from peakward.kernels.ops.fp8_swiglu.triton import backward, forward


def _both(m: int, width: int, source: torch.dtype) -> None:
    packed = torch.empty(m, 2 * width, dtype=source, device="meta")
    gradient = torch.empty(m, width, dtype=source, device="meta")
    history = torch.empty(LENGTH, dtype=torch.int32, device="meta")
    forward(packed, history)
    backward(gradient, packed, history)


LAUNCHES = {
    f"{m} × {width} {source}": Launch(
        lambda m=m, width=width, source=source: _both(m, width, source),
        registers=210,  # Up to 255 one program fits on a multiprocessor, above 128 no second one.
        shared_bytes=24 << 10,
        capabilities=(90,),
    )
    for m, width, source in (
        (8192, 10240, torch.bfloat16),
        (8192, 2560, torch.float32),
        (48, 80, torch.float16),
    )
}
