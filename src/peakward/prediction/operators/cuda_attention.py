"""torch's fused attentions of a GPU, each one operator forward and one backward.

Whatever they skip, FLOPs are of whole products. Masks of a seq_len that 8 does not divide are
padded by torch's source (`pad_bias` of `attention.cpp`), which no capture holds.
"""

from peakward.prediction.operators.additive_mask import additive_mask, make_additive_mask
from peakward.prediction.operators.heads import keys, like_queries, product_flops, queries
from peakward.prediction.operators.layout import Strides, by_rows, dense
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, INT, UINT, Tape, tensor
from peakward.records.op_graph import Operand

_CUDNN, _FLASH, _EFFICIENT = (
    f"_scaled_dot_product_{each}_attention" for each in ("cudnn", "flash", "efficient")
)
_ALIGNMENT = 8
"""Elements: what flash pads head_dim to, and the efficient kernel a mask's rows."""
_TILE = 32
"""Rows: the efficient kernel's log-sum-exp has a multiple of as many."""
_PRODUCTS, _PRODUCTS_BACKWARD = 2, 5
"""Scores and mix; the scores once more, then gradients of query, key, weights and value."""


def cudnn_forward(tape: Tape, plan: Plan) -> Strides:
    """(batch, heads, seq, head_dim), and what `cudnn_backward` needs."""
    q, k = queries(plan), keys(plan)
    make_additive_mask(tape, plan)
    inputs = (q, k, k, *_mask(plan))
    tape.call(_CUDNN, inputs, (q, *_of_cudnn(plan)), flops=product_flops(q, k) * _PRODUCTS)
    return like_queries(plan)


def cudnn_backward(tape: Tape, plan: Plan) -> None:
    """Gradient of the result → of queries, keys and values."""
    q, k = queries(plan), keys(plan)
    inputs = (q, q, k, k, q, *_of_cudnn(plan), *_mask(plan))
    flops = product_flops(q, k) * _PRODUCTS_BACKWARD
    tape.call(f"{_CUDNN}_backward", inputs, (q, k, k), flops=flops)


def flash_forward(tape: Tape, plan: Plan) -> Strides:
    """As `cudnn_forward`; a head_dim that 8 does not divide is padded, and cut from the result."""
    q, k = _padded(queries(plan)), _padded(keys(plan))
    if q != queries(plan):
        for unpadded in (queries(plan), keys(plan), keys(plan)):
            tape.call("constant_pad_nd", (unpadded,), (_padded(unpadded),))
    dropped = tensor(plan.compute, 0)  # The weights, which only dropout's tests ask for.
    outputs = (q, *_of_flash(plan), dropped)
    tape.call(_FLASH, (q, k, k), outputs, flops=product_flops(q, k) * _PRODUCTS)
    return like_queries(plan) if q == queries(plan) else dense(q.shape)


def flash_backward(tape: Tape, plan: Plan) -> None:
    """As `cudnn_backward`; padding is undone by padding with a negative width."""
    q, k = _padded(queries(plan)), _padded(keys(plan))
    if q != queries(plan):
        tape.call("slice_backward", (queries(plan),), (q,))
    inputs = (q, q, k, k, q, *_of_flash(plan))
    flops = product_flops(q, k) * _PRODUCTS_BACKWARD
    tape.call(f"{_FLASH}_backward", inputs, (q, k, k), flops=flops)
    if q != queries(plan):
        for unpadded in (queries(plan), keys(plan), keys(plan)):
            tape.call("constant_pad_nd", (_padded(unpadded),), (unpadded,))


def efficient_forward(tape: Tape, plan: Plan) -> Strides:
    """As `cudnn_forward`, with the result row by row whatever the queries' layout is."""
    q, k = queries(plan), keys(plan)
    make_additive_mask(tape, plan)
    mask = additive_mask(plan)
    if mask is not None and plan.keys % _ALIGNMENT:
        tape.call("constant_pad_nd", (mask,), (_padded(mask),))
    tape.call(
        _EFFICIENT,
        (q, k, k, *_expanded_mask(plan)),
        (q, *_of_efficient(plan)),
        flops=product_flops(q, k) * _PRODUCTS,
        bytes_read=q.n_bytes + 2 * k.n_bytes + _mask_bytes(plan),
    )
    return by_rows(q.shape)


def efficient_backward(tape: Tape, plan: Plan) -> None:
    """As `cudnn_backward`."""
    q, statistics = queries(plan), _of_efficient(plan)
    tape.call(
        f"{_EFFICIENT}_backward",
        (q, q, q, q, *_expanded_mask(plan), q, *statistics),
        (q, q, q),
        flops=product_flops(q, q) * _PRODUCTS_BACKWARD,
        bytes_read=5 * q.n_bytes + sum(x.n_bytes for x in statistics) + _mask_bytes(plan),
    )


def _of_cudnn(plan: Plan) -> tuple[Operand, ...]:
    """Log-sum-exp, where a backward pass follows, and the state of random numbers."""
    log_sums = tensor(FLOAT, *queries(plan).shape[:3], 1)
    return ((log_sums,) if plan.differentiated else ()) + (tensor(INT), tensor(INT))


def _of_flash(plan: Plan) -> tuple[Operand, ...]:
    return (tensor(FLOAT, *queries(plan).shape[:3]), tensor(UINT, 2), tensor(UINT))


def _of_efficient(plan: Plan) -> tuple[Operand, ...]:
    batch, heads, seq, _ = queries(plan).shape
    rows = _TILE * -(-seq // _TILE) if plan.differentiated else 0
    return (tensor(FLOAT, batch, heads, rows), tensor(INT), tensor(INT))


def _padded(x: Operand) -> Operand:
    *outer, size = x.shape
    return tensor(x.dtype, *outer, _ALIGNMENT * -(-size // _ALIGNMENT))


def _mask(plan: Plan) -> tuple[Operand, ...]:
    mask = additive_mask(plan)
    return () if mask is None else (mask,)


def _mask_bytes(plan: Plan) -> int:
    return sum(x.n_bytes for x in _mask(plan))


def _expanded_mask(plan: Plan) -> tuple[Operand, ...]:
    """For every sequence and head; what lies in memory is still `_mask`."""
    batch, heads, seq, _ = queries(plan).shape
    return tuple(tensor(x.dtype, batch, heads, seq, plan.keys) for x in _mask(plan))
