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
    sizes = ((n_tokens, vocab, width), (n_tokens, width, vocab), (vocab, width, n_tokens))
    products = sizes[: PRODUCTS[operator.name]]
    compute_s = sum(model.compute_s(*each) for each in products)
    if model.kernel.item_bytes == 2 and not model.aligned(width):
        compute_s *= UNALIGNED_SLOWDOWN
    chunked = operator.name.endswith("chunked")
    n_chunks = chunks(hidden, weight, of_tokens=chunked)[0] if len(products) > 1 else 1
    # Made in the forward pass of the recomputed loss, logits never reach memory.
    logits_bytes = n_tokens * vocab * ITEM_BYTES[hidden.dtype] if len(products) > 1 else 0
    total = weight if chunked else hidden
    again_bytes = (n_chunks - 1) * 2 * total.n_elements * ITEM_BYTES[FLOAT]
    moved = operator.bytes_read + operator.bytes_written + (2 + 2 * chunked) * logits_bytes
    memory_s = on.traffic.time_s(moved + again_bytes)
    starts_s = n_chunks * len(products) * model.start_s
    passes_s = on.traffic.time_s(2 * logits_bytes) if chunked else 0.0
    bound: Literal["compute", "memory"] = "compute" if compute_s + passes_s > memory_s else "memory"
    n_launches = n_chunks * (PRODUCT_LAUNCHES * len(products) + chunked) + 1
    return LossTime(starts_s + max(compute_s + passes_s, memory_s), n_launches, bound)
