"""A gradient of the losses' sum → that of the loss, which knows by how many rows it was divided."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.recording import launch

BLOCK, NUM_WARPS = 4096, 4


@triton.jit
def _linear_cross_entropy_scale(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, grad_loss_ptr, count_ptr, n, BLOCK: tl.constexpr
):
    scale = tl.div_rn(tl.load(grad_loss_ptr).to(tl.float32), tl.load(count_ptr))
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < n
    x = tl.load(x_ptr + offset, mask=inside).to(tl.float32)
    tl.store(out_ptr + offset, (x * scale).to(out_ptr.dtype.element_ty), mask=inside)


def scaled(x: Tensor, grad_loss: Tensor, count: Tensor, dtype: torch.dtype) -> Tensor:
    """x·grad_loss / count in that type; torch's multiplication by a scalar of another type than x's
    loads single elements (524 µs for 262 of 131 million of fp32 to bf16 on an H100)."""
    out = torch.empty_like(x, dtype=dtype)
    if x.numel():
        n_blocks = triton.cdiv(x.numel(), BLOCK)
        launch(
            _linear_cross_entropy_scale,
            (n_blocks,),
            x,
            out,
            grad_loss,
            count,
            x.numel(),
            BLOCK=BLOCK,
            num_warps=NUM_WARPS,
        )
    return out
