"""The time of a matrix product from its shape: whole tiles in whole waves, or its bytes.

A GPU cuts the result of m × n into tiles, gives each multiprocessor one at a time, and is as slow
as its last round of them: a product of 200 tiles on 132 multiprocessors takes as long as one of
264 (NVIDIA, "Matrix Multiplication Background User's Guide", tile and wave quantisation). Which
tile is taken is the library's secret; here it is the one that ends first, of those that cuBLAS's
kernels are named after in traces of an H200. Over 102 bf16 products in such traces, 2.1 to 107
GFLOP each, this errs by 2.4% (median) and 5.2% (nine in ten), over 30 in fp32 by 4.9% and 10%.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

from peakward.records.calibration import ProductRate

Tile = tuple[int, int]

_SIMT: tuple[Tile, ...] = ((32, 32), (32, 128), (64, 64), (64, 128), (128, 128), (128, 256))
_TF32: tuple[Tile, ...] = ((64, 64), (64, 128), (64, 256), (128, 128), (128, 256))
_NARROW: tuple[Tile, ...] = (
    (64, 64),
    (64, 96),
    (64, 128),
    (64, 256),
    (128, 128),
    (128, 160),
    (128, 192),
    (128, 256),
    (128, 320),
    (160, 256),
    (192, 192),
)
"""Tiles of 16-bit types and fp8."""


class Kernel(NamedTuple):
    """The losses of a type's kernels, which are the same on every device."""

    tiles: tuple[Tile, ...]
    """Each also turned."""
    edge: float
    """A tile of a × b runs at 1 / (1 + edge·(1/a + 1/b)) of the rate: it loads (a + b)·k elements
    for a·b·k multiply-adds."""
    prologue: int
    """The cost of filling and emptying the pipeline, in steps of k."""
    item_bytes: int
    unsplit: tuple[float, ...] = ()
    """For each tile by which factor it is slower than its edges say; empty where none is. It counts where the
    library splits no sum over k: where it does, it need not take small tiles."""


_UNSPLIT_SIMT = (1.15, 1.15, 1.25, 1.25, 1.0, 1.0)
"""Few threads do not keep a multiprocessor's fp32 units busy: in traces of an H200 tiles of 128 × 128 and
more run at 0.93 of the rate, those of 128 × 64 at 0.69 to 0.73 (1,024³; 256 × 4,096 over 16,384; 2,048 ×
6,848 over 1,024). Fitted to 25 products of k below `SPLIT_FROM` or with a bias, in these traces and in stored
profiles of an H200: they err by 5.1% in the mean, with equal tiles by 10.2%. Batches of 64 × 128 tiles keep
0.94 of the rate."""
SPLIT_FROM = 2048
"""The k from which cuBLAS splits an fp32 product over large tiles instead of taking small ones: it split
256 × 2,048 over 2,048 and over 8,192, but not 1,024³, nor 256 × 4,096 over 16,384 with a bias. None between
them was traced."""

KERNELS: dict[str, Kernel] = {
    "fp32": Kernel(_SIMT, 2, 64, 4, _UNSPLIT_SIMT),
    "tf32": Kernel(_TF32, 4, 192, 4),
    "bf16": Kernel(_NARROW, 4, 128, 2),
    "fp16": Kernel(_NARROW, 4, 128, 2),
    "fp8": Kernel(_NARROW, 4, 128, 1),
}
"""edge and prologue are the least-squares fit to the products of the traces named above; of fp16 and
fp8 there were none, and bf16's are taken."""

ALIGNED_BYTES = 16
"""Rows that start elsewhere cannot be loaded by a tensor descriptor."""
UNALIGNED_SLOWDOWNS = {4: (3.0, 3.45), 1: (8.0, 5.4)}
"""By the bytes at whose multiples rows still start, forward and backward. Then cuBLAS takes kernels of
older devices. Of Ampere where four bytes can be copied asynchronously (`align2`): OLMo 3's head, 100,278
wide, ran at 278 TFLOP/s forward and at 237 and 242 backward in bf16 on an H200. With multiples of eight
none was traced. Else of Turing (`align1`): a head 57,717 wide ran at 97 forward, one of 50,257 on an H100 at
147 backward, and others there took 1.5 and 1.6 times as long forward as backward. A width of 10,000 runs at
770."""
TF32_TRANSPOSED_SLOWDOWN = 1.8
"""A tf32 product over the rows of both operands, as every weight gradient is: 104 to 178 TFLOP/s
where the others of its sizes have 144 to 305 (H200)."""
FEW_ROWS = 64
"""A decode step's: the result has one row of tiles, and reading the weight is all the time there is.
cuBLAS and torch know it and split such products along k (split-K; of one row a matrix-vector
product), or a weight of 10,240 × 2,560 would be read by 40 of 132 multiprocessors. None was traced;
what follows was fitted to sixteen decode steps in a CUDA graph on an H100, of four models
(`2026-11-22-h100-bench-decode`)."""
FEW_ROWS_BANDWIDTH = 0.9
"""Share of a copy's bandwidth: with all of it the steps in bf16 came out 4% to 13% too short."""
FEW_ROWS_START_S = 3.8e-6
"""At most, whatever the type: with the 8 µs of fp32's large products the steps in fp32 came out 16% and
26% too long."""
SHORTEST_PART = 256
"""The shortest part of k."""


class ProductModel(NamedTuple):
    """One compute type on one device."""

    kernel: Kernel
    flops_per_s: float
    """The rate of an endless product, where tiles, waves and the start cost nothing."""
    start_s: float
    """Before and after the multiplication: launch, first loads, last stores."""
    n_sms: int
    bytes_per_s: float

    def time_s(self, m: int, n: int, k: int, batch: int = 1) -> float:
        """Seconds of [m, k] × [k, n], `batch` of them in one call, from one launch to the next."""
        if 0 in (m, n, k, batch):
            return self.start_s
        return self.opening_s(m) + max(
            self.compute_s(m, n, k, batch), self.memory_s(m, n, k, batch)
        )

    def opening_s(self, m: int) -> float:
        """`start_s` of a product of so many rows."""
        return min(self.start_s, FEW_ROWS_START_S) if m <= FEW_ROWS else self.start_s

    def compute_s(self, m: int, n: int, k: int, batch: int = 1, *, splits: bool = True) -> float:
        """Seconds with the tile that ends first. With few rows each tile's sum over k is shared out among the
        multiprocessors that would have none.

        Args:
            splits: Whether the library splits k where there are few large tiles.
        """
        return _compute_s(self, (m, n, k, batch), splits or m <= FEW_ROWS)

    def memory_s(self, m: int, n: int, k: int, batch: int = 1) -> float:
        """Seconds to read both operands and write the result, once each."""
        elements = batch * (m * k + k * n + m * n)
        share = FEW_ROWS_BANDWIDTH if m <= FEW_ROWS else 1.0
        return elements * self.kernel.item_bytes / (share * self.bytes_per_s)

    def slowdown(self, *row_lengths: int, forward: bool) -> float:
        """By how rows of such lengths start. 16-bit types alone lose by it: fp32 is loaded by the element,
        and torch takes no other rows of fp8."""
        starts = math.gcd(*(each * self.kernel.item_bytes for each in row_lengths))
        if self.kernel.item_bytes != 2 or starts % ALIGNED_BYTES == 0:
            return 1.0
        found = (each for n_bytes, each in UNALIGNED_SLOWDOWNS.items() if starts % n_bytes == 0)
        return next(found)[0 if forward else 1]

    def shared_out(self, n_tiles: int, m: int, k: int, batch: int) -> tuple[int, int]:
        """How many tiles there are and how long each sums, where few rows leave multiprocessors free."""
        n_tiles *= batch
        if not 0 < n_tiles < self.n_sms or m > FEW_ROWS:  # None: an expert that no token goes to.
            return n_tiles, k
        n_parts = min(self.n_sms // n_tiles, max(1, k // SHORTEST_PART))
        return n_tiles * n_parts, math.ceil(k / n_parts)

    def waves_s(self, a: int, b: int, n_tiles: int, k: int) -> float:
        """Seconds of n_tiles tiles of (a, b), over k, in whole rounds."""
        waves = math.ceil(n_tiles / self.n_sms)
        tile_flops = 2 * a * b * (k + self.kernel.prologue)
        slowdown = 1 + self.kernel.edge * (1 / a + 1 / b)
        return waves * tile_flops * slowdown * self.n_sms / self.flops_per_s


@lru_cache(maxsize=4096)
def _compute_s(on: ProductModel, sizes: tuple[int, int, int, int], splits: bool) -> float:
    """Most levers leave most products as they are, and a plan asks for each lever on each device."""
    m, n, k, batch = sizes
    slowdowns = repeat(1.0) if splits or not on.kernel.unsplit else on.kernel.unsplit
    return min(
        slowdown
        * on.waves_s(a, b, *on.shared_out(math.ceil(m / a) * math.ceil(n / b), m, k, batch))
        for tile, slowdown in zip(on.kernel.tiles, slowdowns, strict=False)
        for a, b in (tile, tile[::-1])
    )


def fitted(
    kernel: Kernel, rates: Sequence[ProductRate], *, n_sms: int, bytes_per_s: float
) -> ProductModel:
    """The model whose start is the smallest square's and whose rate is that of the others (median).

    Of the others, because the largest alone would tell what the device does at its power cap: an
    H200 multiplies 8192³ in bf16 at 789 TFLOP/s, of which 0.94 is a smaller rate than that of
    2048³ after its tiles are accounted for. Two rounds bring both unknowns within 1.3% of where more
    would (H200, bf16); edge and prologue were fitted with two.

    Args:
        kernel: of the type that the rates are of.
        rates: of one compute type; at least two squares.
        n_sms: multiprocessors of the device.
        bytes_per_s: its bandwidth.
    """
    from statistics import (
        median,  # It imports decimal and fractions, and few plans have rates to fit.
    )

    squares = sorted((each for each in rates if each.kind == "square"), key=lambda each: each.m)
    smallest, others = squares[0], squares[1:]
    model = ProductModel(kernel, others[-1].flops_per_s, 0.0, n_sms, bytes_per_s)
    for _ in range(2):
        shares = (
            model.compute_s(each.m, each.n, each.k) / (_time_s(each) - model.start_s)
            for each in others
        )
        model = model._replace(flops_per_s=model.flops_per_s * median(shares))
        compute_s = model.compute_s(smallest.m, smallest.n, smallest.k)
        model = model._replace(start_s=max(0.0, _time_s(smallest) - compute_s))
    return model


def _time_s(rate: ProductRate) -> float:
    return 2 * rate.m * rate.n * rate.k / rate.flops_per_s
