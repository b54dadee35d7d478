"""One product in each number format: of two square matrices, or of all queries with all keys.

Operands are drawn in fp32 and converted before anything is timed; those of 8 bits with one scale a tensor.
The difference from fp64 therefore holds the rounding of the operands.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from peakward.lab.micro.piece import Piece, chosen, drawn, sizes
from peakward.records.case import MicroCase
from peakward.records.errors import PeakwardError

FLOATS = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
"""tf32's operands are kept in fp32; the case's precision says that products round them."""
EIGHT_BITS: dict[str, tuple[torch.dtype, torch.dtype]] = {
    "fp8 e4m3": (torch.float8_e4m3fn, torch.float8_e4m3fn),
    "fp8 e5m2": (torch.float8_e5m2, torch.float8_e4m3fn),
    "int8": (torch.int8, torch.int8),
}
"""The types of the operands. cuBLAS multiplies e5m2 by e4m3 alone, as gradients are by weights."""
PIECES = (*FLOATS, *EIGHT_BITS)


def build_matmul(case: MicroCase) -> Piece:
    """Builds a case of sizes (n,): n × n times n × n.

    Raises:
        PeakwardError: tf32 in a case of another precision, or the other way round; tf32 on a CPU.
    """
    (n,) = sizes(case, "n")
    _expect_precision(case)
    a, b = drawn(case, 2, n, n)
    flops = 2 * n**3
    if case.piece in FLOATS:
        kind = FLOATS[case.piece]
        x, y = a.to(kind), b.to(kind)
        return Piece(lambda: x @ y, (x, y), flops, lambda: a.double() @ b.double())
    kinds = chosen(case, EIGHT_BITS)
    (x, x_scale), (y, y_scale) = (
        _scaled(each, kind) for each, kind in zip((a, b), kinds, strict=True)
    )
    columns = y.t().contiguous().t()
    return Piece(
        run=_product(x, columns),
        inputs=(x, columns),
        flops=flops,
        oracle=lambda: (a.double() / x_scale) @ (b.double() / y_scale),
    )


def build_scores(case: MicroCase) -> Piece:
    """Builds a case of sizes (batch, heads, length, head_dim): queries times transposed keys.

    Raises:
        PeakwardError: as `build_matmul`, or a format of 8 bits, which torch does not multiply in batches.
    """
    batch, heads, length, width = sizes(case, "batch", "heads", "length", "head_dim")
    _expect_precision(case)
    kind = chosen(case, FLOATS)
    q, k = drawn(case, 2, batch, heads, length, width)
    x, y = q.to(kind), k.to(kind)
    return Piece(
        run=lambda: x @ y.transpose(-1, -2),
        inputs=(x, y),
        flops=2 * batch * heads * length**2 * width,
        oracle=lambda: q.double() @ k.double().transpose(-1, -2),
    )


def _expect_precision(case: MicroCase) -> None:
    if case.piece == "tf32" and case.device == "cpu":
        raise PeakwardError("expected tf32 on a GPU, got cpu: its cores have no such products")
    wanted = "tf32" if case.piece == "tf32" else "fp32"
    if case.precision != wanted:
        raise PeakwardError(
            f"expected a case in {wanted} for the piece {case.piece!r}, got {case.precision}"
        )


def _scaled(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """x in the type, and the fp64 scale that turns it back."""
    largest = torch.finfo(kind).max if kind.is_floating_point else torch.iinfo(kind).max
    scale = x.double().abs().amax() / largest
    scaled = x.double() / scale
    return (scaled if kind.is_floating_point else scaled.round()).to(kind), scale


def _product(x: Tensor, columns: Tensor) -> Callable[[], Tensor]:
    if not x.dtype.is_floating_point:
        return lambda: torch._int_mm(x, columns)
    one = torch.ones((), device=x.device)
    return lambda: torch._scaled_mm(
        x, columns, one, one, out_dtype=torch.bfloat16, use_fast_accum=True
    )
