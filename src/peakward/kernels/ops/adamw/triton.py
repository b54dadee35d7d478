"""AdamW in one pass over memory: each of its seven streams is moved once.

torch's fused kernel moved the 48 GB of a 3.4-billion-parameter bf16 step at 2.7 TB/s on an H200
whose copies reach 4.26 (17.7 ms, 2026-11-21).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.recording import launch

BLOCK = 4096
"""Elements a program: 16 bf16 a thread at 256 threads, two 16-byte accesses of each stream."""


@triton.jit
def _update(  # type: ignore[no-untyped-def]
    p_ptr,
    g_ptr,
    m_ptr,
    v_ptr,
    scales_ptr,
    n_elements,
    beta1,
    beta2,
    one_minus_beta1,
    one_minus_beta2,
    eps,
    decay,
    BLOCK: tl.constexpr,
):
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < n_elements
    rate = tl.load(scales_ptr)
    unbias = tl.load(scales_ptr + 1)
    g = tl.load(g_ptr + offset, mask=inside).to(tl.float32)
    m = tl.load(m_ptr + offset, mask=inside).to(tl.float32)
    v = tl.load(v_ptr + offset, mask=inside).to(tl.float32)
    p = tl.load(p_ptr + offset, mask=inside).to(tl.float32)
    m = beta1 * m + one_minus_beta1 * g
    v = beta2 * v + one_minus_beta2 * g * g
    p = p * decay - rate * (m / (tl.sqrt(v * unbias) + eps))
    tl.store(p_ptr + offset, p.to(p_ptr.dtype.element_ty), mask=inside)
    tl.store(m_ptr + offset, m.to(m_ptr.dtype.element_ty), mask=inside)
    tl.store(v_ptr + offset, v.to(v_ptr.dtype.element_ty), mask=inside)


def scales(step: Tensor, *, lr: float, betas: tuple[float, float]) -> Tensor:
    """The two factors that all parameters of an update share: (2,) of fp32, lr/(1 - β1ᵗ) and 1/(1 -
    β2ᵗ).

    They are computed in fp64 up to the last rounding: at the first steps 1 - 0.999ᵗ would lose ten of
    fp32's bits.
    """
    count = step.double()
    beta1, beta2 = betas
    return torch.stack((lr / (1 - beta1**count), 1 / (1 - beta2**count))).float()


def update(
    parameter: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    shared: Tensor,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """As `reference.update`, in fp32 arithmetic; every tensor contiguous, fp32, fp16 or bf16.

    `shared` is the result of `scales` for this step.
    """
    n = parameter.numel()
    beta1, beta2 = betas
    launch(
        _update,
        (triton.cdiv(n, BLOCK),),
        parameter,
        gradient,
        first,
        second,
        shared,
        n,
        beta1,
        beta2,
        1 - beta1,
        1 - beta2,
        eps,
        1 - lr * weight_decay,
        BLOCK=BLOCK,
        num_warps=8,
    )
