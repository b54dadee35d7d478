"""Softmax over the last dimension of (rows, columns): by its definition, online, and fused."""

from collections.abc import Callable

import torch
from torch import Tensor

from peakward.kernels.ops.rows.layout import RowSettings
from peakward.kernels.ops.softmax.api import softmax as own_softmax
from peakward.lab.micro.compiled import Compiled
from peakward.lab.micro.piece import COMPILED, Piece, chosen, drawn, sizes
from peakward.records.case import MicroCase

BLOCK = 512
"""Columns that the online softmax takes at once."""
PIECE, LEAST_PIECE = 8192, 64
"""Columns that its kernel takes at once: as many as of rows that no registers hold, fewer of narrow rows."""
ONLINE_KERNEL = "online, one kernel"
FLOPS = 5
"""An element: compare, subtract, exponentiate, add, divide."""


def three_passes(x: Tensor) -> Tensor:
    """The maximum; the exponentials and their sum; the quotients. Each is a call, or two."""
    largest = x.amax(-1, keepdim=True)
    exponentials = (x - largest).exp_()
    total = exponentials.sum(-1, keepdim=True)
    return exponentials.div_(total)


def online(x: Tensor) -> Tensor:
    """Maximum and sum in one pass over blocks of columns, the sum rescaled where the maximum grows
    (Milakov & Gimelshein 2018, algorithm 3), then a second pass that writes the result."""
    first = x[..., :1]
    largest, total = torch.full_like(first, -float("inf")), torch.zeros_like(first)
    for block in x.split(BLOCK, -1):
        larger = torch.maximum(largest, block.amax(-1, keepdim=True))
        total = total * (largest - larger).exp() + (block - larger).exp_().sum(-1, keepdim=True)
        largest = larger
    return (x - largest).exp_().div_(total)


def online_kernel(x: Tensor) -> Tensor:
    """`online` in one kernel, which reads its rows twice and writes them once: this project's, given rows in
    two pieces at least, where by itself it would hold a narrow row in registers."""
    from peakward.kernels.ops.softmax.triton import softmax as launched

    columns = min(PIECE, max(LEAST_PIECE, 2 ** (x.shape[-1].bit_length() - 2)))
    return launched(x, x.dtype, RowSettings(rows=1, columns=columns, warps=max(1, columns // 512)))


def formula(x: Tensor) -> Tensor:
    """Without a thought for memory: what the compiler is given."""
    exponentials = (x - x.amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def fused(x: Tensor) -> Tensor:
    """torch's own kernel."""
    return torch.softmax(x, -1)


PIECES: dict[str, Callable[[Tensor], Tensor]] = {
    "three passes": three_passes,
    "online": online,
    ONLINE_KERNEL: online_kernel,
    "torch": fused,
    COMPILED: formula,
    "peakward": own_softmax,
}


def build(case: MicroCase) -> Piece:
    """Of sizes (rows, columns)."""
    rows, columns = sizes(case, "rows", "columns")
    x = drawn(case, rows, columns)
    function = chosen(case, PIECES)
    compiled = Compiled(function) if case.piece == COMPILED else None
    call = compiled or function
    return Piece(
        run=lambda: call(x),
        inputs=(x,),
        flops=FLOPS * x.numel(),
        oracle=lambda: formula(x.double()),
        compiled=compiled,
        dispatched=case.piece != ONLINE_KERNEL,  # Started by Triton, of which torch sees nothing.
    )
