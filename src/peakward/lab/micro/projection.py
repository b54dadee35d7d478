"""Queries, keys and values of (tokens, width): by three products, or by one over packed weights."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear

from peakward.lab.micro.piece import Piece, chosen, drawn, sizes
from peakward.records.case import MicroCase

Made = tuple[Tensor, ...]


def separate(x: Tensor, weights: Tensor) -> Made:
    """Three products with (width, width) each."""
    return tuple(linear(x, weight) for weight in weights.chunk(3))


def packed(x: Tensor, weights: Tensor) -> Made:
    """One product with (3 · width, width); the three results are views of it."""
    return linear(x, weights).chunk(3, -1)


def packed_copied(x: Tensor, weights: Tensor) -> Made:
    """As `packed`, with a contiguous copy of each of the three."""
    return tuple(each.contiguous() for each in packed(x, weights))


PIECES: dict[str, Callable[[Tensor, Tensor], Made]] = {
    "separate": separate,
    "packed": packed,
    "packed (copied)": packed_copied,
}


def build(case: MicroCase) -> Piece:
    """Builds a case of sizes (tokens, width)."""
    tokens, width = sizes(case, "tokens", "width")
    make = chosen(case, PIECES)
    numbers = drawn(case, tokens + 3 * width, width)
    x, weights = numbers[:tokens], numbers[tokens:]
    return Piece(
        run=lambda: make(x, weights),
        inputs=(x, weights),
        flops=2 * tokens * width * 3 * width,
        oracle=lambda: torch.cat(separate(x.double(), weights.double()), -1),
    )
