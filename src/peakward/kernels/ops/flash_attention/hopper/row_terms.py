"""Computes what the backward pass needs of each query beside its row, its log-sum-exp and Σ out·dout,
and clears the sums that it begins with. In kernels of their own these would be two launches more."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.recording import launch

ROWS = 64


@triton.jit(do_not_specialize=["q_len", "padded", "n_heads"])
def _attention_row_terms(  # type: ignore[no-untyped-def]
    out_ptr,
    dout_ptr,
    lse_ptr,
    dlse_ptr,
    lse2_ptr,
    delta_ptr,
    sums_ptr,
    counter_ptr,
    q_len,
    padded,
    n_heads,
    out_batch,
    out_head,
    out_row,
    dout_batch,
    dout_head,
    dout_row,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1).to(tl.int64)
    inside = row < q_len
    within = row[:, None].to(tl.int64)
    d = tl.arange(0, COLUMNS)[None, :]
    seen = inside[:, None]
    if COLUMNS != D:
        seen &= d < D
    out_ptr += (head // n_heads) * out_batch + (head % n_heads) * out_head
    dout_ptr += (head // n_heads) * dout_batch + (head % n_heads) * dout_head
    out = tl.load(out_ptr + within * out_row + d, mask=seen, other=0.0)
    dout = tl.load(dout_ptr + within * dout_row + d, mask=seen, other=0.0)
    lse = tl.load(lse_ptr + head * q_len + row, mask=inside, other=0.0)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    if dlse_ptr is not None:
        delta -= tl.load(dlse_ptr + head * q_len + row, mask=inside, other=0.0)
    # A row that sees no key: every weight is exp2(score - infinity), 0.
    lse2 = tl.where(lse == float("-inf"), float("inf"), lse * 1.4426950408889634)
    tl.store(lse2_ptr + head * padded + row, lse2, mask=row < padded)
    tl.store(delta_ptr + head * padded + row, delta, mask=row < padded)
    # In an order of their own: what counts is that as many are zeroed.
    sums_ptr += (head * padded + tl.program_id(0) * ROWS) * D
    zeros = tl.arange(0, ROWS * COLUMNS)
    tl.store(sums_ptr + zeros, tl.zeros([ROWS * COLUMNS], tl.float32), mask=zeros < ROWS * D)
    tl.store(counter_ptr, 0)


def row_terms(
    out: Tensor,
    dout: Tensor,
    lse: Tensor,
    dlse: Tensor | None,
    sums: Tensor,
    counter: Tensor,
) -> tuple[Tensor, Tensor]:
    """(lse in base 2, Σ out·dout - dlse), each (batch, heads, padded) in fp32, beyond q_len 0.

    Args:
        out, dout: (batch, heads, q_len, head_dim), the last contiguous.
        lse, dlse: contiguous (batch, heads, q_len) in fp32.
        sums: (batch, heads, padded, head_dim) in fp32, and counter, one of int32: filled with zeros.
            `padded` is a multiple of ROWS.
    """
    batch, n_heads, q_len, d = out.shape
    padded = sums.shape[2]
    lse2 = torch.empty(batch, n_heads, padded, dtype=torch.float32, device=out.device)
    delta = torch.empty_like(lse2)
    launch(
        _attention_row_terms,
        (triton.cdiv(padded, ROWS), batch * n_heads),
        out,
        dout,
        lse,
        dlse,
        lse2,
        delta,
        sums,
        counter,
        q_len,
        padded,
        n_heads,
        *out.stride()[:3],
        *dout.stride()[:3],
        D=d,
        COLUMNS=triton.next_power_of_2(d),
        ROWS=ROWS,
    )
    return lse2, delta
