"""Softmax over the last dimension of (rows, columns): by its definition, online, and fused."""

from collections.abc import Callable

import torch
from torch import Tensor

from peakward.kernels.ops.rows.layout import RowSettings
from peakward.kernels.ops.softmax.api import softmax as own_softmax
from peakward.lab.micro.piece import COMPILED, Compiled, Piece, chosen, drawn, sizes
from peakward.records.case import MicroCase

BLOCK = 512
"""The columns that the online softmax takes at once."""
PIECE, LEAST_PIECE = 8192, 64
"""The columns that its kernel takes at once: the kernel's piece for rows that do not fit into
registers, and fewer for narrow rows."""
ONLINE_KERNEL = "online, one kernel"
FLOPS = 5
"""The FLOPs of an element: compare, subtract, exponentiate, add, divide."""


def three_passes(x: Tensor) -> Tensor:
    """Computes the maximum, then the exponentials and their sum, then the quotients. Each step is one
    call or two."""
    largest = x.amax(-1, keepdim=True)
    exponentials = (x - largest).exp_()
    total = exponentials.sum(-1, keepdim=True)
    return exponentials.div_(total)


def online(x: Tensor) -> Tensor:
    """Computes maximum and sum in one pass over blocks of columns, rescaling the sum where the maximum
    grows (Milakov & Gimelshein 2018, algorithm 3), then writes the result in a second pass."""
    first = x[..., :1]
    largest, total = torch.full_like(first, -float("inf")), torch.zeros_like(first)
    for block in x.split(BLOCK, -1):
        larger = torch.maximum(largest, block.amax(-1, keepdim=True))
        total = total * (largest - larger).exp() + (block - larger).exp_().sum(-1, keepdim=True)
        largest = larger
    return (x - largest).exp_().div_(total)


def online_kernel(x: Tensor) -> Tensor:
    """`online` in one kernel, which reads its rows twice and writes them once. It is this project's
    kernel, told to take rows in at least two pieces; by itself it would hold a narrow row in registers."""
    from peakward.kernels.ops.softmax.triton import softmax as launched

    columns = min(PIECE, max(LEAST_PIECE, 2 ** (x.shape[-1].bit_length() - 2)))
    return launched(x, x.dtype, RowSettings(rows=1, columns=columns, warps=max(1, columns // 512)))


def formula(x: Tensor) -> Tensor:
    """The plain formula, which the compiler is given."""
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
    """Builds a case of sizes (rows, columns)."""
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
        dispatched=case.piece != ONLINE_KERNEL,  # torch does not see what Triton launches.
    )
