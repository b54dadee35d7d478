"""A linear layer whose weight is kept in 8 or 4 bits (`lab/models/layers.py`): one operator, and
how its launch cuts it up (`kernels/ops/quantized_matmul/triton/settings.py`), of 132 multiprocessors.

No gradient passes through one.
"""

import math
from typing import NamedTuple

from peakward.prediction.operators.linear import Linear, SavedLinear
from peakward.prediction.operators.tape import FLOAT, of_type, tensor
from peakward.prediction.operators.writer import Value, Writer

_SLOTS = 132
_TILE = 128
"""Inputs."""
_WARPS, _MOST_SPLITS = 8, 32


class Cut(NamedTuple):
    """The cut of a product."""

    rows: int
    """Rows of x that one program takes: the weight is read once for so many."""
    n_splits: int
    """Programs that share the inputs of an output; more than one leave sums in fp32, added up after."""


def forward(on: Writer, layer: Linear, x: Value) -> tuple[SavedLinear, Value]:
    """x (…, n_in) → (…, n_out) in the compute type, with sums in fp32 where programs share the inputs."""
    *outer, _ = x.operand.shape
    y, n_rows = tensor(layer.compute, *outer, layer.n_out), math.prod(outer)
    stored = layer.quantised
    assert stored is not None
    shape = (n_rows, layer.n_in, layer.n_out)
    n_splits = cut(*shape, bits=stored.bits, compute=layer.compute).n_splits
    sums = (n_splits * of_type(y, FLOAT).n_bytes,) if n_splits > 1 else ()
    with on.module(layer.module):
        given = (on.cast(x, layer.compute), *map(Value, stored.kept(layer.n_in, layer.n_out)))
        flops = 2 * x.operand.n_elements * layer.n_out
        (made,) = on.call(stored.operator, given, (y,), flops=flops, scratch=sums)
        if layer.bias:
            bias = on.cast(Value(layer.bias_vector), layer.compute, held=(made,))
            made = on.pointwise("add", made, bias)
    return SavedLinear(layer, x, ()), made


def cut(n_rows: int, n_in: int, n_out: int, *, bits: int, compute: str) -> Cut:
    """The cut of n_rows of x in that type, in groups of no fewer than 64 inputs."""
    n_tiles = -(-n_in // _TILE)
    if bits == 8 and n_rows <= 16 and compute != FLOAT:
        return _of_bytes(n_rows, n_tiles, n_out)
    rows, channels, warps, shares_x = _program(n_rows, n_out, compute=compute)
    n_programs = -(-n_out // channels) * -(-n_rows // rows)
    wanted = _WARPS if rows > 16 or compute == FLOAT else 2 * _WARPS
    least = 4 if shares_x else 2 * warps
    most = wanted * _SLOTS // max(1, n_programs * warps)
    return Cut(rows, max(1, min(most, n_tiles // least, _MOST_SPLITS)))


def _of_bytes(n_rows: int, n_tiles: int, n_out: int) -> Cut:
    rows, channels, least = (1, 8, 16) if n_rows == 1 else (16, 32, 4)
    if n_rows == 1 and 1 < n_out / 8 / (6 * _SLOTS) < 1.5:
        channels, least = 4, 32
    n_programs = max(1, -(-n_out // channels))
    wanted = round(2 * _SLOTS / n_programs)
    if n_rows > 1 and wanted > 1:
        wanted = round(3 * _SLOTS / n_programs)
    return Cut(rows, max(1, min(wanted, n_tiles // least, _MOST_SPLITS)))


def _program(n_rows: int, n_out: int, *, compute: str) -> tuple[int, int, int, bool]:
    """Rows of x, outputs, warps, and whether the warps share x."""
    filled = -(-n_out // 16) / _SLOTS
    if compute == FLOAT:
        return 8, 16, 4, False
    if n_rows > 16:
        return (32 if n_rows <= 32 else 64), 16 * _WARPS, _WARPS, True
    if n_rows <= 8:
        return (8, 32, 4, False) if filled > 4 else (8, 16, 8, False)
    return (16, 32, 4, False) if 4 < filled <= _WARPS else (16, 16 * _WARPS, _WARPS, True)
