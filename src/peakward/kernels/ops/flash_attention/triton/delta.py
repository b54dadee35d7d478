"""Computes the number by which every element of a row of dS is reduced."""

import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.flash_attention.rule import Packing
from peakward.kernels.ops.flash_attention.triton.heads import head_of, load
from peakward.kernels.ops.flash_attention.triton.problem import (
    Problem,
    lse_like,
    row_strides,
    starts_of,
    strides_of,
)
from peakward.kernels.ops.flash_attention.triton.tiles import span
from peakward.kernels.ops.recording import launch

ROWS = 64


@triton.jit
def _attention_delta(  # type: ignore[no-untyped-def]
    out,
    dout,
    dlse_ptr,
    delta_ptr,
    q_starts,
    out_strides,
    dout_strides,
    lse_strides,
    n_heads,
    q_len,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VARLEN: tl.constexpr,
):
    n_blocks = tl.cdiv(q_len, ROWS)
    program = tl.program_id(0)
    batch = program // n_blocks // n_heads
    head = program // n_blocks % n_heads
    start = program % n_blocks * ROWS
    first, q_len = span(q_starts, batch, q_len, VARLEN)
    if VARLEN:
        if start >= q_len:
            return
    out = head_of(out, batch, head, first, out_strides, False)
    dout = head_of(dout, batch, head, first, dout_strides, False)
    o = load(out, 0, 0, start, q_len, out_strides[2], ROWS, WIDTH, HEAD_DIM, True, False)
    do = load(dout, 0, 0, start, q_len, dout_strides[2], ROWS, WIDTH, HEAD_DIM, True, False)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    row = start + tl.arange(0, ROWS)
    base = batch.to(tl.int64) * lse_strides[0] + head.to(tl.int64) * lse_strides[1] + first
    if dlse_ptr is not None:
        delta -= tl.load(dlse_ptr + base + row, mask=row < q_len, other=0.0)
    tl.store(delta_ptr + base + row, delta, mask=row < q_len)


def delta_of(
    problem: Problem, out: Tensor, dout: Tensor, dlse: Tensor | None, packing: Packing | None
) -> Tensor:
    """rowsum(out∘dout) - dlse of fp32, laid out as the logarithms of sums; `dlse` contiguous."""
    delta = lse_like(problem, out, packing)
    n_programs = triton.cdiv(problem.q_len, ROWS) * problem.n_batches * problem.n_heads
    if n_programs == 0:
        return delta
    launch(
        _attention_delta,
        (n_programs,),
        out,
        dout,
        dlse,
        delta,
        starts_of(packing)[0],
        strides_of(out),
        strides_of(dout),
        row_strides(problem, packing),
        problem.n_heads,
        problem.q_len,
        ROWS=ROWS,
        WIDTH=triton.next_power_of_2(problem.head_dim),
        HEAD_DIM=problem.head_dim,
        VARLEN=packing is not None,
        num_warps=4,
    )
    return delta
