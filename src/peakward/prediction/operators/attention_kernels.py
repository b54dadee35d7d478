"""Attention, kernel by kernel: written out, torch's fused ones of a CPU and of CUDA, and Peakward's own."""

from peakward.prediction.operators.heads import (
    Strides,
    all_keys,
    as_batch,
    by_rows,
    dense,
    held_keys,
    keys,
    like_queries,
    matrices,
    new_keys,
    packed,
    product_flops,
    queries,
    repeated,
    scales,
    summed,
    swapped,
)
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.positions import (
    additive_mask,
    as_numbers,
    causal_mask,
    make_additive_mask,
)
from peakward.prediction.operators.tape import (
    BOOL,
    FLOAT,
    HALF,
    INT,
    UINT,
    Tape,
    of_type,
    tensor,
    transposed,
)
from peakward.records.op_graph import Operand

# Attention with every pass over the score matrix made (`kernels/ops/attention/reference.py`).


def naive_forward(tape: Tape, plan: Plan) -> Strides:
    """Queries and keys, turned or not, and values → dense (batch, heads, seq, head_dim).

    A cache's heads lie at equal distances: a batch of matrices without a copy, as dense ones are.
    """
    shape = plan.shape
    q, k = queries(plan), all_keys(plan)
    rotated = plan.turned_apart
    grouped = shape.n_heads != shape.n_kv_heads
    if grouped:
        for _ in ("keys", "values"):
            repeated(tape, plan, plan.compute)
    as_batch(tape, q, dense(q.shape) if rotated else packed(plan))
    elsewhere = grouped or plan.from_cache
    laid_out = dense(k.shape) if rotated or elsewhere else packed(plan)
    as_batch(tape, transposed(k), swapped(laid_out, 2, 3))
    weights = _weights(tape, plan)
    as_batch(tape, k, dense(k.shape) if elsewhere else packed(plan))
    tape.product("bmm", matrices(weights), matrices(k))
    return dense(q.shape)


def _weights(tape: Tape, plan: Plan) -> Operand:
    """Scores, mask and softmax: (batch, heads, seq, keys) in the compute type."""
    shape, q = plan.shape, queries(plan)
    tape.product("bmm", matrices(q), matrices(transposed(all_keys(plan))))
    scores = tape.pointwise("div", _naive_scores(plan, plan.compute))
    if shape.positions == "alibi":
        scores = tape.pointwise("add", scores, tensor(FLOAT, shape.n_heads, plan.seq, plan.keys))
    if plan.masked:
        forbidden = tape.pointwise("bitwise_not", causal_mask(tape, plan.seq, shape.window))
        scores = tape.pointwise("masked_fill", scores, forbidden)
    if scores.dtype != HALF:  # Of fp16 alone CUDA's softmax gives fp32.
        scores = tape.cast(scores, FLOAT)
    return tape.cast(tape.pointwise("_softmax", scores, dtype=FLOAT), plan.compute)


def naive_backward(tape: Tape, plan: Plan) -> None:
    """Gradient of the result, heads side by side in memory → of queries, keys and values."""
    shape, q = plan.shape, queries(plan)
    as_batch(tape, q, by_rows(q.shape))
    weights = _naive_scores(plan, plan.compute)
    tape.product("bmm", matrices(q), matrices(transposed(q)))
    tape.product("bmm", matrices(weights), matrices(q))
    gradient = _softmax_backward(tape, plan, tape.cast(weights, FLOAT))
    gradient = tape.pointwise("masked_fill", gradient, tensor(BOOL, plan.seq, plan.seq))
    tape.pointwise("div", tape.cast(gradient, plan.compute))
    tape.product("bmm", matrices(weights), matrices(q))
    tape.product("bmm", matrices(transposed(q)), matrices(weights))
    if shape.n_heads != shape.n_kv_heads:
        for _ in ("keys", "values"):
            summed(tape, plan, plan.compute)


def _softmax_backward(tape: Tape, plan: Plan, wide: Operand) -> Operand:
    """Gradient of the weights in fp32 → of the scores in their type."""
    scores = FLOAT if plan.shape.positions == "alibi" else plan.compute
    if scores == HALF:
        return tape.pointwise("_softmax_backward_data", wide, wide, dtype=HALF)
    return tape.cast(tape.pointwise("_softmax_backward_data", wide, wide), scores)


def _naive_scores(plan: Plan, dtype: str) -> Operand:
    return tensor(dtype, plan.batch, plan.shape.n_heads, plan.seq, plan.keys)


# torch's scaled_dot_product_attention written out: `_scaled_dot_product_attention_math`.
#
# In fp32 throughout: narrower queries, keys and values are widened, the result is narrowed. Queries and
# keys are both scaled, each by the root of the factor, so that no score overflows.


def math_forward(tape: Tape, plan: Plan) -> Strides:
    """Queries, keys and values → (batch, heads, seq, head_dim)."""
    make_additive_mask(tape, plan)
    q = tape.cast(queries(plan), FLOAT)
    for _ in ("keys", "values"):
        tape.cast(keys(plan), FLOAT)
    tape.pointwise("mul", q)
    k = of_type(all_keys(plan), FLOAT)
    mask = additive_mask(plan) or (_causal(tape, plan) if plan.masked else None)
    grouped = plan.shape.n_heads != plan.shape.n_kv_heads
    if grouped:
        for _ in ("keys", "values"):
            repeated(tape, plan, FLOAT)
    elsewhere = grouped or plan.from_cache
    tape.pointwise("mul", transposed(k))
    as_batch(tape, q, like_queries(plan))
    as_batch(
        tape, transposed(k), swapped(dense(k.shape) if elsewhere else like_queries(plan), 2, 3)
    )
    tape.product("bmm", matrices(q), matrices(transposed(k)))
    scores = _math_scores(plan)
    if mask is not None:
        tape.pointwise("add", scores, mask)
    weights = tape.pointwise("_safe_softmax", scores)
    as_batch(tape, k, dense(k.shape) if elsewhere else by_rows(k.shape))
    tape.product("bmm", matrices(weights), matrices(k))
    tape.cast(q, plan.compute)
    tape.cast(weights, plan.compute)  # Which the caller drops.
    return dense(q.shape)


def math_backward(tape: Tape, plan: Plan) -> None:
    """Gradient of the result, heads side by side in memory → of queries, keys and values."""
    q = tape.cast(queries(plan), FLOAT)
    weights = _math_scores(plan)
    as_batch(tape, q, by_rows(q.shape))
    tape.product("bmm", matrices(q), matrices(transposed(q)))
    tape.product("bmm", matrices(weights), matrices(q))
    tape.pointwise("_softmax_backward_data", weights, weights)
    tape.product("bmm", matrices(weights), matrices(q))
    tape.product("bmm", matrices(transposed(q)), matrices(weights))
    tape.pointwise("mul", q)
    tape.pointwise("mul", transposed(q))
    if plan.shape.n_heads != plan.shape.n_kv_heads:
        for _ in ("keys", "values"):
            summed(tape, plan, FLOAT)
    for each in (queries(plan), keys(plan), keys(plan)):
        tape.cast(of_type(each, FLOAT), plan.compute)


def _causal(tape: Tape, plan: Plan) -> Operand:
    """(seq, seq) of fp32."""
    allowed = tape.pointwise("tril", tape.made("ones", BOOL, plan.seq, plan.seq))
    return as_numbers(tape, allowed, FLOAT)


def _math_scores(plan: Plan) -> Operand:
    return tensor(FLOAT, plan.batch, plan.shape.n_heads, plan.seq, plan.keys)


# torch's scaled_dot_product_attention on a CPU: one flash operator forward and one backward.

_CPU_NAME = "_scaled_dot_product_flash_attention_for_cpu"


def cpu_forward(tape: Tape, plan: Plan) -> Strides:
    """Queries, keys and values → (batch, heads, seq, head_dim) and the rows' log-sum-exp."""
    q, k = queries(plan), keys(plan)
    make_additive_mask(tape, plan)
    outputs = (q, tensor(FLOAT, *q.shape[:3]))
    tape.call(_CPU_NAME, (q, k, k, *_cpu_mask(plan)), outputs, flops=product_flops(q, k) * 2)
    return like_queries(plan)


def cpu_backward(tape: Tape, plan: Plan) -> None:
    """The scores once more, and the gradients of query, key, weights and value: five products."""
    q, k = queries(plan), keys(plan)
    inputs = (q, q, k, k, q, tensor(FLOAT, *q.shape[:3]), *_cpu_mask(plan))
    tape.call(f"{_CPU_NAME}_backward", inputs, (q, k, k), flops=product_flops(q, k) * 5)


def _cpu_mask(plan: Plan) -> tuple[Operand, ...]:
    mask = additive_mask(plan)
    return () if mask is None else (mask,)


# torch's fused attentions of a GPU, each one operator forward and one backward.
#
# Whatever they skip, FLOPs are of whole products. Masks of a seq_len that 8 does not divide are padded by
# torch's source (`pad_bias` of `attention.cpp`), which no capture holds.

_CUDNN, _FLASH, _EFFICIENT = (
    f"_scaled_dot_product_{each}_attention" for each in ("cudnn", "flash", "efficient")
)
_ALIGNMENT = 8
"""Elements: what flash pads head_dim to, and the efficient kernel a mask's rows."""
_TILE = 32
"""Rows: the efficient kernel's log-sum-exp has a multiple of as many."""
PRODUCTS, _PRODUCTS_BACKWARD = 2, 5
"""Scores and mix; the scores once more, then gradients of query, key, weights and value."""


def cudnn_forward(tape: Tape, plan: Plan) -> Strides:
    """(batch, heads, seq, head_dim), and what `cudnn_backward` needs."""
    q, k = queries(plan), keys(plan)
    make_additive_mask(tape, plan)
    inputs = (q, k, k, *_cuda_mask(plan))
    tape.call(_CUDNN, inputs, (q, *_of_cudnn(plan)), flops=product_flops(q, k) * PRODUCTS)
    return like_queries(plan)


def cudnn_backward(tape: Tape, plan: Plan) -> None:
    """Gradient of the result → of queries, keys and values."""
    q, k = queries(plan), keys(plan)
    inputs = (q, q, k, k, q, *_of_cudnn(plan), *_cuda_mask(plan))
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
    tape.call(_FLASH, (q, k, k), outputs, flops=product_flops(q, k) * PRODUCTS)
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
        flops=product_flops(q, k) * PRODUCTS,
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


def _cuda_mask(plan: Plan) -> tuple[Operand, ...]:
    mask = additive_mask(plan)
    return () if mask is None else (mask,)


def _mask_bytes(plan: Plan) -> int:
    return sum(x.n_bytes for x in _cuda_mask(plan))


def _expanded_mask(plan: Plan) -> tuple[Operand, ...]:
    """For every sequence and head; what lies in memory is still `_mask`."""
    batch, heads, seq, _ = queries(plan).shape
    return tuple(tensor(x.dtype, batch, heads, seq, plan.keys) for x in _cuda_mask(plan))


# Peakward's own attention kernels, each one operator forward and one backward.
#
# As of torch's, FLOPs are of whole products, though blocks of keys that no query of theirs sees are
# skipped, and bytes those of operands: what is added up in fp32 meanwhile is the kernel's own affair
# (`prediction.time.kernels`, `prediction.memory.attention`).

_OWN_NAME, _TO_CACHE = "flash_attention", "decode_attention"
"""Scores and mix; the scores once more, then gradients of query, key, weights and value."""


def own_forward(tape: Tape, plan: Plan) -> Strides:
    """Queries, keys and values → (batch, heads, seq, head_dim), and the rows' log-sum-exp."""
    q, k = queries(plan), keys(plan)
    tape.own(_OWN_NAME, (q, k, k), (q, _log_sums(plan)), flops=product_flops(q, k) * PRODUCTS)
    return like_queries(plan)


def own_to_cache(tape: Tape, plan: Plan) -> Strides:
    """As `forward`, of one new token a sequence; its result is dense."""
    q, held = queries(plan), held_keys(plan)
    inputs = (q, held, held, *scales(plan))
    tape.own(_TO_CACHE, inputs, (q, _log_sums(plan)), flops=product_flops(q, held) * PRODUCTS)
    return dense(q.shape)


def write_to_cache(tape: Tape, plan: Plan) -> None:
    """New keys and values, each copied into its place; into a cache of bytes rounded by one kernel."""
    new = new_keys(plan)
    if (kept := plan.narrow_cache) is None:
        for _ in ("keys", "values"):
            tape.call("copy_", (new, new), (new,), bytes_read=new.n_bytes)
        return
    slots = tape.made("arange", INT, plan.seq)
    *which, _, size = new.shape
    held, scale = (
        tensor(kept.dtype, *which, kept.capacity, size),
        tensor(FLOAT, *which, kept.capacity),
    )
    rounded, of_scales = of_type(new, kept.dtype), tensor(FLOAT, *new.shape[:-1])
    tape.own(
        "cache_write",
        (held, held, scale, scale, new, new, tensor(INT, plan.batch, plan.seq)),
        (held, held, scale, scale),
        bytes_read=2 * new.n_bytes + slots.n_bytes,
        bytes_written=2 * (rounded.n_bytes + of_scales.n_bytes),
    )


def own_backward(tape: Tape, plan: Plan) -> None:
    """Gradient of the result → of queries, keys and values."""
    q, k = queries(plan), keys(plan)
    inputs = (q, q, k, k, q, _log_sums(plan))
    flops = product_flops(q, k) * _PRODUCTS_BACKWARD
    tape.own(f"{_OWN_NAME}_backward", inputs, (q, k, k), flops=flops)


def _log_sums(plan: Plan) -> Operand:
    return tensor(FLOAT, *queries(plan).shape[:3])
