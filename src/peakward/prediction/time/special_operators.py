"""The time of operators that are more than a product or a pass: fused, grouped, quantised, a loss."""

import math
from typing import Literal, NamedTuple

from peakward.hardware.attention_backend import ComputeCapability
from peakward.prediction.operators.linear import cut
from peakward.prediction.operators.linear_loss import chunks
from peakward.prediction.operators.tape import FLOAT, of_type
from peakward.prediction.time.device_model import DeviceModel
from peakward.prediction.time.kernels import PRODUCT_LAUNCHES
from peakward.prediction.time.products import ProductModel, Tile
from peakward.records.op_graph import ITEM_BYTES, Operand, Operator

# The time of a kernel that Inductor makes of several operators, from the bytes that it moves.
#
# Factors are over a plain addition of the same bytes, as in `kernels`. Found in traces of two train
# steps on an H200 (torch 2.11, Triton 3.6: `small` and `2.7B` in bf16 with fused attention, 4 × 512),
# each kernel's duration with the 0.9 µs that lay between it and the next. Of fp32 and of autocast there
# is no trace: theirs are taken to be as far from their traffic.
#
# - Elementwise kernels: 0.94 to 1.17 from 13 to 126 MB; a copy into another layout 1.29 and 1.44.
# - Joining parts (`cat`): each part's branch is run for every element, and loads but for its own nothing.
# - Reductions along rows that fit a block's registers 0.98 to 1.37, those that loop over a row twice
#   1.23 to 1.70; across rows, in two steps, 2.1 to 2.7 and then 3.2 to 3.7 µs.

TRANSPOSED = 1.4
"""A copy of heads side by side."""
LONGEST_PERSISTENT_ROW = 1024
"""Inductor keeps no more elements of a row in registers (`codegen/triton.py`)."""
PERSISTENT, LOOPED = 1.15, 1.45
MIXED = 1.8
"""Sums along rows and across them in one kernel: 0.55 of the bandwidth for 4096 rows of 8192 on a
GB200, by a maintainer's figures (PyTorch issue 185534); none was traced here."""
OUTER = 2.5
OUTER_FINISH_S = 1.4e-6
"""On top of a launch."""
SINGLE_BLOCK_S = 3e-6
"""On top of a launch: the sum over all positions of the loss, 3.9 and 4.4 µs for 2048 of them."""


class _Rate(NamedTuple):
    """The rate that bounds a kernel beside its bytes."""

    name: str
    """An operator in it; the first that is found counts."""
    elements_per_sm_s: float


_RATES = (
    _Rate("aten.silu_backward", 470e9 / 132),  # 500 and 444 · 10⁹ a second, of the joined halves.
    _Rate("aten.cat", 360e9 / 132),  # RoPE, by pairs, 268 and 368, its gradient 409 and 345.
    _Rate("aten._log_softmax_backward_data", 650e9 / 132),  # 697 and 622, rows of 10,000.
    _Rate("aten._log_softmax", 535e9 / 132),  # 562 and 510: its exponentials.
)
"""Beside a launch."""
LOOPED_SOFTMAX = _Rate("aten._softmax", 370e9 / 132)
"""Rows that do not stay in registers: an online softmax takes exponentials in both of its passes. 65,536 rows
of 2,048 scores, divided and masked, took 364 µs, 368 · 10⁹ a second; by bytes they were told 193."""


def fused_s(operator: Operator, on: DeviceModel) -> float:
    """Seconds of one call, from its launch to the next."""
    moved_s = on.traffic.time_s(operator.bytes_read + operator.bytes_written)
    return max(_factor(operator) * moved_s, _elements_s(operator, on)) + _start_s(operator)


def _factor(operator: Operator) -> float:
    if operator.name == "inductor.pointwise":
        return TRANSPOSED if _joins_heads(operator) else 1.0
    if operator.name == "inductor.outer_reduction":
        return OUTER
    if operator.name == "inductor.mixed_reduction":
        return MIXED
    return PERSISTENT if _row(operator) <= LONGEST_PERSISTENT_ROW else LOOPED


def _joins_heads(operator: Operator) -> bool:
    """Gradients of queries, keys and values, which go side by side."""
    rows = len(operator.outputs[0].shape) == 3
    return "aten.clone" in operator.fused and operator.phase == "backward" and rows


def _row(operator: Operator) -> int:
    return max(each.shape[-1] for each in operator.inputs if each.shape)


def _elements_s(operator: Operator, on: DeviceModel) -> float:
    rate = next((each for each in _rates(operator) if each.name in operator.fused), None)
    joins_only = operator.fused == ("aten.cat", "aten.clone")
    if rate is None or joins_only or "aten.nll_loss_forward" in operator.fused:
        return 0.0
    given = operator.outputs if operator.name == "inductor.pointwise" else operator.inputs
    elements = max(each.n_elements for each in given)
    return on.traffic.launch_s + elements / (on.n_sms * rate.elements_per_sm_s)


def _rates(operator: Operator) -> tuple[_Rate, ...]:
    loops = operator.name == "inductor.inner_reduction" and _row(operator) > LONGEST_PERSISTENT_ROW
    return (*_RATES, LOOPED_SOFTMAX) if loops else _RATES


def _start_s(operator: Operator) -> float:
    if "aten.nll_loss_forward" in operator.fused:
        return SINGLE_BLOCK_S
    finishes = operator.name == "inductor.outer_reduction" and len(operator.inputs) == 1
    return OUTER_FINISH_S if finishes else 0.0


# The time of products of all groups in one kernel: CUTLASS's, as torch takes it.
#
# After `GroupMM.cu` (ATen/native/cuda): one kernel fills a table of the groups, then another goes
# through the tiles of all groups, each in clusters of two along the rows. Where a group has few rows
# or columns, and on compute capability 10 always, tiles are small. Groups are taken to be alike; of
# fewer rows than groups, each is a group. Tiles and waves are priced as `products` prices cuBLAS's, times
# what an H200 took more (torch 2.11: 8,192 visits of 60 experts, 2,048 and 1,408 wide, in a trace).

LAUNCHES = 2.0
SMALL: Tile = (64, 128)
LARGE: Tile = (128, 256)
FEW = 128
"""Rows or columns of one group, up to which tiles are small."""
CLUSTER = 2
"""Tiles along the rows that run together, whether there are rows for both or not."""
_BLACKWELL = 10
SHORT_SLOWDOWN, SHORT_SUMMED_SLOWDOWN = 1.3, 1.7
"""Over tiles alone, of groups with no more rows than one cluster has: 1.23 to 1.43; and where groups cut what
is summed over, as in a weight's gradient, 1.66 and 1.77. With eight experts of a thousand rows and more,
steps are told 3% to 6% too short without."""


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


def slowdown(operator: Operator) -> float:
    """By what the groups cut, and how short they are."""
    a, b = (each.shape for each in operator.inputs[:2])
    summed, found = len(a) == len(b) == 2, groups(operator)
    if (found.k if summed else found.m) > CLUSTER * LARGE[0]:
        return 1.0
    return SHORT_SUMMED_SLOWDOWN if summed else SHORT_SLOWDOWN


def compute_s(each: Groups, on: ProductModel, compute_capability: ComputeCapability) -> float:
    """Seconds of their tiles, in whole waves, without slowdowns."""
    few = min(each.m, each.columns) <= FEW or compute_capability[0] == _BLACKWELL
    a, b = SMALL if few else LARGE
    rows = CLUSTER * math.ceil(each.m / (CLUSTER * a))
    return on.waves_s(a, b, each.n * rows * math.ceil(each.columns / b), each.k)


# The time of a product with quantised weights, as that of reading them: once for every so many rows.
#
# Kernels of int4, and of int8 of one row, widen what they read beside multiplying it: the multiprocessors
# bound their rate, and not memory alone, and many rows take as often as long as they are parts. The first
# microseconds of reading run at half the rate. One line from a start did not do: where it held for a large
# weight, steps of `2.7B` and Llama-7B were foretold up to 22% too short, and where it held for these, steps
# of `small` 24% too long. Start, ramp and rate are those that foretell them best, on an H200: 450, 2,398 and
# 3,177 µs a step of `small`, `2.7B` and Llama-7B in int8, 477, 2,101 and 2,581 in int4
# (`2026-11-29-h200-decode-speed-2`), less what steps of dense weights took beyond their prediction, and 67.3
# and 41.8 of 28,672 × 8,192 alone: all within 2%. Of 16 and 64 rows by steps of `2.7B` and that weight alone
# (`2026-11-29-h200-study-quantization`), of 32 between the two. Calls on an H100, which the fit had not seen,
# took 0.94 to 1.08 times what is foretold by one row of weights of 30 MB and more
# (`2026-11-23-h100-kernel-speed-quantized_matmul-3`); as shares of a copy's rate the same figures were 6 to
# 18% too long there in int4.
#
# From two rows on int8 is not widened. Shares and what does not depend on a weight's size lie on a line
# through what 28,672 × 8,192 and 10,240 × 2,560 took on an H200, whose copies run at 4.2 TB/s
# (`2026-11-29-h200-kernel-trials-int8-digits`): 63.4, 66.1, 68.9 and 87.3 µs, and 13.2, 14.7, 16.4 and 22.5,
# of 8, 16, 32 and 64 rows. Two others are foretold within 7%. `products` foretells bf16 of 10,240 × 2,560
# there within 3%, so nothing is taken off. From 17 rows on what was timed also brought weights into the L2,
# which has gone since and cost 2 to 5 µs. Of fp32 inputs nothing was measured.

RATES: dict[int, dict[int, float]] = {
    8: {1: 3.86e12},
    4: {8: 3.44e12, 16: 2.23e12, 32: 1.80e12, 64: 1.32e12},
}
"""Bytes a second of kernels that widen, by bits and by rows that a program takes, on `RATED_SMS`."""
RATED_SMS = 132
MOST_SHARE = 0.98
"""Share of a copy's bandwidth that they reach at most."""
DIGITS_SHARES = {8: 0.96, 16: 0.94, 32: 0.95, 64: 0.77}
"""Share of a copy's bandwidth of int8 beside several rows, by rows that a program takes."""
STARTS_S: dict[int, dict[int, float]] = {
    8: {1: 1.8e-6},
    4: {8: 2.9e-6, 16: 1.4e-6, 32: 2.5e-6, 64: 4.0e-6},
}
"""From one launch to the next without reading, by bits and by rows, of kernels that widen."""
RAMP_S = 3.9e-6
"""The most time of reading that takes twice as long, in kernels that widen."""
DIGITS_START_S = {8: 1.1e-6, 16: 2.2e-6, 32: 6.0e-6, 64: 10.6e-6}
"""Beside a product's start, by the rows of a program: int8 alone, from 17 rows on with a launch before."""
DIGITS_WITHIN = 16
"""The most rows of which programs make the digits of x themselves."""


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
    group = n_in // scale.shape[0]
    rows, n_splits = cut(n_rows, n_in, n_out, bits=bits, group=group, compute=x.dtype)
    n_parts = -(-n_rows // rows)
    moved = n_parts * (weight.n_bytes + scale.n_bytes) + x.n_bytes + y.n_bytes
    if bits == 8 and n_rows > 1:
        start_s = model.opening_s(rows) + DIGITS_START_S[rows]
        read_s = moved / (DIGITS_SHARES[rows] * model.bytes_per_s)
    else:
        start_s = STARTS_S[bits][rows]
        rate = min(RATES[bits][rows] * on.n_sms / RATED_SMS, MOST_SHARE * model.bytes_per_s)
        read_s = moved / rate + min(moved / rate, RAMP_S)
    sums_s, n_launches = 0.0, 1.0 + (bits == 8 and n_rows > DIGITS_WITHIN)
    if n_splits > 1:
        sums_s = on.traffic.time_s(n_splits * y.n_elements * ITEM_BYTES[FLOAT] + y.n_bytes)
        n_launches += 1
    return ProductTime(
        start_s + read_s + sums_s, n_launches, "launch" if start_s > read_s else "memory"
    )


# The time of Peakward's cross-entropy with the output layer in it, as that of its parts.
#
# Products are taken to run as cuBLAS's do, though the recomputed loss makes its logits in a kernel of its
# own; a chunk of logits is read and written once more, and gradients in fp32 are read and written for each
# chunk but the first. Every number of it is `NEVER_MEASURED`.

_WHICH = {
    "chunked": slice(3),
    "whole": slice(2),
    "whole_backward": slice(2, 3),
    "recomputed": slice(1),
    "recomputed_backward": slice(3),
}
"""Products that an operator multiplies: the logits, the stream's gradient and the weight's."""


class LossTime(NamedTuple):
    """The time of one call."""

    device_s: float
    n_launches: float
    bound: Literal["compute", "memory"]


def loss_time(operator: Operator, model: ProductModel, on: DeviceModel) -> LossTime:
    """The time of one of `PRODUCTS`; the model is of the type that it multiplies in."""
    kind = operator.name.removeprefix("peakward.linear_cross_entropy_")
    hidden, weight = operator.outputs if kind == "whole_backward" else operator.inputs[:2]
    (n_tokens, width), vocab = hidden.shape, weight.shape[0]
    slowdown = model.slowdown(width, forward=False)
    logits, of_hidden = (n_tokens, vocab, width), (n_tokens, width, vocab)
    sizes = [logits, of_hidden, (vocab, width, n_tokens)][_WHICH[kind]]
    if kind == "recomputed":  # Its logits never reach memory.
        compute_s = slowdown * model.compute_s(*logits)
        memory_s = on.traffic.time_s(operator.bytes_read + operator.bytes_written)
        return LossTime(model.start_s + max(compute_s, memory_s), 3.0, _bound(compute_s, memory_s))
    products_s = sum(
        max(slowdown * model.compute_s(*each), model.memory_s(*each)) for each in sizes
    )
    n_chunks = 1
    if not kind.startswith("whole"):
        n_chunks, _ = chunks(hidden, weight, of_tokens=kind == "chunked")
    n_passes, passed_bytes = _passes(kind, hidden, weight, n_chunks)
    passes_s = on.traffic.time_s(2 * passed_bytes)
    starts_s = n_chunks * len(sizes) * model.start_s
    n_launches = n_chunks * len(sizes) * PRODUCT_LAUNCHES + n_passes + 1
    return LossTime(starts_s + products_s + passes_s, n_launches, _bound(products_s, passes_s))


def _passes(kind: str, hidden: Operand, weight: Operand, n_chunks: int) -> tuple[int, int]:
    """Beside products: launches, and bytes that are read and written once. Of sums in fp32 products do
    that by themselves."""
    logits_bytes = hidden.shape[0] * weight.shape[0] * ITEM_BYTES[hidden.dtype]
    sums = weight if kind == "chunked" else hidden
    sums_bytes = (n_chunks - 1) * of_type(sums, FLOAT).n_bytes
    if kind == "whole_backward":
        return 1, 2 * hidden.n_bytes
    return (
        (0, sums_bytes) if kind == "recomputed_backward" else (n_chunks, logits_bytes + sums_bytes)
    )


def _bound(compute_s: float, memory_s: float) -> Literal["compute", "memory"]:
    return "compute" if compute_s > memory_s else "memory"
