"""The time of a product with quantised weights, as that of reading them: once for every so many rows.

The kernels widen what they read beside multiplying it, so that few rows take a share of a copy's rate that
falls with their number, and many take as often as long as they are parts. Shares are of 4,096 × 14,336 in
bf16 on an H100, less what such calls of a bf16 product of one row took beyond `products`, 6.7 µs: of up to
16 rows by `2026-11-23-h100-kernel-speed-quantized_matmul`, of int8 by the one of 2026-11-22 (`…-2`, from
an L2 with nothing to write back, has one row at the same ratio to a bf16 product, int8 of 16 at a larger);
of more rows by `2026-11-22-h100-kernel-sweep-quantized_matmul`. int4 of 16 rows takes less where its
columns are split, or over many channels (`2026-11-23-…-3`): 20.0 µs of 14,336 × 4,096 where 22.9 are
foretold, 109 of 128,256 channels for 154. Of steps none was measured, and of fp32 inputs nothing.
"""

from typing import Literal, NamedTuple

from peakward.prediction.operators.linear import cut
from peakward.prediction.operators.tape import FLOAT
from peakward.prediction.time.device_model import DeviceModel
from peakward.prediction.time.products import ProductModel
from peakward.records.op_graph import ITEM_BYTES, Operator

SHARES: dict[int, dict[int, float]] = {
    8: {1: 0.83, 16: 0.82, 32: 0.6, 64: 0.45},
    4: {8: 0.84, 16: 0.61, 32: 0.51, 64: 0.38},
}
"""Share of a copy's bandwidth, by bits and by rows that a program takes. That of int8 and 32 rows lies
between its neighbours."""


class ProductTime(NamedTuple):
    """The time of one call."""

    device_s: float
    n_launches: float
    bound: Literal["memory", "launch"]


def product_time(operator: Operator, model: ProductModel, on: DeviceModel) -> ProductTime:
    """The model is of the type of x."""
    x, weight, scale = operator.inputs
    (y,) = operator.outputs
    n_in, n_out = x.shape[-1], y.shape[-1]
    n_rows, bits = x.n_elements // n_in, 8 if weight.dtype == "int8" else 4
    rows, n_splits = cut(n_rows, n_in, n_out, bits=bits, compute=x.dtype)
    n_parts = -(-n_rows // rows)
    moved = n_parts * (weight.n_bytes + scale.n_bytes) + x.n_bytes + y.n_bytes
    read_s = moved / (SHARES[bits][rows] * model.bytes_per_s)
    start_s = model.opening_s(rows)
    sums_s, n_launches = 0.0, 1.0
    if n_splits > 1:
        sums_s = on.traffic.time_s(n_splits * y.n_elements * ITEM_BYTES[FLOAT] + y.n_bytes)
        n_launches = 2.0
    return ProductTime(
        start_s + read_s + sums_s, n_launches, "launch" if start_s > read_s else "memory"
    )
