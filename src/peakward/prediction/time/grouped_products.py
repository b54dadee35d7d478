"""The time of products of all groups in one kernel: CUTLASS's, as torch takes it.

After `GroupMM.cu` (ATen/native/cuda): one kernel fills a table of the groups, then another goes
through the tiles of all groups, each in clusters of two along the rows. Where a group has few rows
or columns, and on compute capability 10 always, tiles are small. Groups are taken to be alike; of
fewer rows than groups, each is a group. Tiles and waves are priced as `products` prices cuBLAS's; no
grouped product was measured.
"""

import math
from typing import NamedTuple

from peakward.hardware.attention_backend import ComputeCapability
from peakward.prediction.time.products import ProductModel, Tile
from peakward.records.op_graph import Operator

LAUNCHES = 2.0
SMALL: Tile = (64, 128)
LARGE: Tile = (128, 256)
FEW = 128
"""Rows or columns of one group, up to which tiles are small."""
CLUSTER = 2
"""Tiles along the rows that run together, whether there are rows for both or not."""
_BLACKWELL = 10


class Groups(NamedTuple):
    """So many products of (m, k) and (k, n)."""

    n: int
    m: int
    columns: int
    k: int


def groups(operator: Operator) -> Groups:
    """The groups of a call of `_grouped_mm`, from the shapes that it gets: rows, columns or k are cut."""
    a, b = (each.shape for each in operator.inputs[:2])
    if len(a) == len(b) == 3:
        return Groups(a[0], a[1], b[2], a[2])
    if len(a) == len(b):
        n_groups = operator.outputs[0].shape[0]
        return Groups(n_groups, a[0], b[1], math.ceil(a[1] / n_groups))
    if len(b) == 3:
        n_groups = min(b[0], max(a[0], 1))
        return Groups(n_groups, math.ceil(a[0] / n_groups), b[2], a[1])
    n_groups = min(a[0], max(b[1], 1))
    return Groups(n_groups, a[1], math.ceil(b[1] / n_groups), a[2])


def compute_s(each: Groups, on: ProductModel, compute_capability: ComputeCapability) -> float:
    """Seconds of their tiles, in whole waves."""
    few = min(each.m, each.columns) <= FEW or compute_capability[0] == _BLACKWELL
    a, b = SMALL if few else LARGE
    rows = CLUSTER * math.ceil(each.m / (CLUSTER * a))
    return on.waves_s(a, b, each.n * rows * math.ceil(each.columns / b), each.k)
