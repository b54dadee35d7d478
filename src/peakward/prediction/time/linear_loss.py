"""The time of Peakward's cross-entropy with the output layer in it, as that of its parts.

Products are taken to run as cuBLAS's do, though the recomputed loss makes its logits in a kernel of its
own; a chunk of logits is read and written once more, and gradients in fp32 are read and written for each
chunk but the first. Every number of it is `NEVER_MEASURED`.
"""

from typing import Literal, NamedTuple

from peakward.prediction.operators.linear_loss import chunks
from peakward.prediction.operators.tape import FLOAT, of_type
from peakward.prediction.time.device_model import DeviceModel
from peakward.prediction.time.kernels import PRODUCT_LAUNCHES
from peakward.prediction.time.products import UNALIGNED_SLOWDOWN, ProductModel
from peakward.records.op_graph import ITEM_BYTES, Operand, Operator

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
    slowdown = 1.0 if model.kernel.item_bytes > 2 or model.aligned(width) else UNALIGNED_SLOWDOWN
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
