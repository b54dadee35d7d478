"""Tells which operations on a tensor give a view of it, which copy it, and which torch refuses."""

from collections.abc import Callable

import torch
from torch import Tensor

from peakward.lab.micro.piece import Piece, chosen, drawn, sizes
from peakward.records.case import MicroCase

Change = Callable[[Tensor], Tensor | tuple[Tensor, ...]]
CHANGES: dict[str, Change] = {
    "view": lambda x: x.view(-1),
    "reshape": lambda x: x.reshape(-1),
    "contiguous": lambda x: x.contiguous(),
    "transpose": lambda x: x.transpose(0, 1),
    "expand": lambda x: x[None].expand(4, -1, -1),
    "select": lambda x: x.select(1, 0),
    "chunk": lambda x: x.chunk(2, 1),
}
PIECES: dict[str, tuple[Change, bool]] = {
    f"{name} of {kind}": (change, turned)
    for name, change in CHANGES.items()
    for kind, turned in (("contiguous", False), ("transposed", True))
}
"""The operation on a matrix, and whether the matrix is a transposed view of its storage."""


def build(case: MicroCase) -> Piece:
    """Builds a case of sizes (rows, columns) of the stored matrix."""
    rows, columns = sizes(case, "rows", "columns")
    change, turned = chosen(case, PIECES)
    stored = drawn(case, rows, columns)
    x = stored.t() if turned else stored

    def run() -> Tensor | tuple[Tensor, ...] | None:
        try:
            return change(x)
        except (
            RuntimeError
        ):  # `view` raises this where the strides allow none; that is a result too.
            return None

    def oracle() -> Tensor:
        made = change(x.double())
        return made if isinstance(made, Tensor) else torch.cat(made, -1)

    return Piece(run=run, inputs=(x,), flops=0, oracle=oracle)
