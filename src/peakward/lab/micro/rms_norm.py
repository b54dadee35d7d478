"""RMSNorm of (rows, columns) over the last dimension, with a weight: call by call, and fused."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from peakward.kernels.ops.rms_norm.api import rms_norm as own_rms_norm
from peakward.lab.micro.piece import COMPILED, Compiled, Piece, chosen, drawn, sizes
from peakward.records.case import MicroCase

EPS = 1e-6
FLOPS = 4
"""The FLOPs of an element: square, add, and two multiplications."""


def formula(x: Tensor, weight: Tensor) -> Tensor:
    """x / √(mean x² + ε) · weight, each step a call, in at least fp32."""
    wide = x if x.element_size() >= 4 else x.float()
    scale = (wide.square().mean(-1, keepdim=True) + EPS).rsqrt()
    return (wide * scale).to(x.dtype) * weight


def fused(x: Tensor, weight: Tensor) -> Tensor:
    """torch's own: one kernel on a GPU, several on a CPU."""
    return functional.rms_norm(x, x.shape[-1:], weight, EPS)


def own(x: Tensor, weight: Tensor) -> Tensor:
    """This project's kernel."""
    return own_rms_norm(x, x.shape[-1:], weight, EPS)


PIECES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "call by call": formula,
    "torch": fused,
    COMPILED: formula,
    "peakward": own,
}


def build(case: MicroCase) -> Piece:
    """Builds a case of sizes (rows, columns)."""
    rows, columns = sizes(case, "rows", "columns")
    numbers = drawn(case, rows + 1, columns)
    x, weight = numbers[:-1], numbers[-1]
    function = chosen(case, PIECES)
    compiled = Compiled(function) if case.piece == COMPILED else None
    call = compiled or function
    return Piece(
        run=lambda: call(x, weight),
        inputs=(x, weight),
        flops=FLOPS * x.numel(),
        oracle=lambda: formula(x.double(), weight.double()),
        compiled=compiled,
    )
