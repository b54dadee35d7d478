"""The time of Peakward's cross-entropy with the output layer in it, as that of its parts.

Products are taken to run as cuBLAS's do, though the recomputed loss makes its logits in a kernel of its
own; a chunk of logits is read and written once more, and gradients in fp32 are read and written for each
chunk but the first. Every number of it is `NEVER_MEASURED`.
"""

from typing import Literal, NamedTuple

from peakward.prediction.operators.linear_loss import PRODUCTS, chunks
from peakward.prediction.operators.tape import FLOAT
from peakward.prediction.time.device_model import DeviceModel
from peakward.prediction.time.kernels import PRODUCT_LAUNCHES
from peakward.prediction.time.products import UNALIGNED_SLOWDOWN, ProductModel
from peakward.records.op_graph import ITEM_BYTES, Operator


class LossTime(NamedTuple):
    """Of one call."""

    device_s: float
    n_launches: float
    bound: Literal["compute", "memory"]


def loss_time(operator: Operator, model: ProductModel, on: DeviceModel) -> LossTime:
    """Of one of `PRODUCTS`; the model is of the type that it multiplies in."""
    hidden, weight = operator.inputs[:2]
    (n_tokens, width), vocab = hidden.shape, weight.shape[0]
    slowdown = 1.0 if model.kernel.item_bytes > 2 or model.aligned(width) else UNALIGNED_SLOWDOWN
    logits = (n_tokens, vocab, width)
    if PRODUCTS[operator.name] == 1:  # Its logits never reach memory.
        compute_s = slowdown * model.compute_s(*logits)
        memory_s = on.traffic.time_s(operator.bytes_read + operator.bytes_written)
        return LossTime(model.start_s + max(compute_s, memory_s), 3.0, _bound(compute_s, memory_s))
    chunked = operator.name.endswith("chunked")
    n_chunks, _ = chunks(hidden, weight, of_tokens=chunked)
    sizes = (logits, (n_tokens, width, vocab), (vocab, width, n_tokens))
    products_s = sum(
        max(slowdown * model.compute_s(*each), model.memory_s(*each)) for each in sizes
    )
    logits_bytes = n_tokens * vocab * ITEM_BYTES[hidden.dtype]
    total_bytes = (weight if chunked else hidden).n_elements * ITEM_BYTES[FLOAT]
    passes_bytes = 2 * logits_bytes * chunked + 2 * (n_chunks - 1) * total_bytes
    passes_s = on.traffic.time_s(passes_bytes)
    starts_s = n_chunks * len(sizes) * model.start_s
    n_launches = n_chunks * (len(sizes) * PRODUCT_LAUNCHES + chunked) + 1
    return LossTime(starts_s + products_s + passes_s, n_launches, _bound(products_s, passes_s))


def _bound(compute_s: float, memory_s: float) -> Literal["compute", "memory"]:
    return "compute" if compute_s > memory_s else "memory"
