"""The linear layers of the blocks: in the compute type, in fp8, or with quantised weights."""

import math
from collections.abc import Callable
from typing import NamedTuple

from peakward.levers.weights import Quantised
from peakward.prediction.memory.timeline import Category
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import E4M3, E5M2, FLOAT, INT32, of_type, tensor, transposed
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.op_graph import Operand

# A linear layer: y = x·Wᵀ + b over (batch, seq, features), its rows as one matrix.


class Linear(NamedTuple):
    """One layer and the types that it computes in and keeps its parameters in."""

    module: str
    n_in: int
    n_out: int
    bias: bool
    stored: str
    compute: str
    quantised: Quantised | None = None

    @property
    def weight(self) -> Operand:
        """(n_out, n_in)."""
        return tensor(self.stored, self.n_out, self.n_in)

    @property
    def bias_vector(self) -> Operand:
        """(n_out,)."""
        return tensor(self.stored, self.n_out)


class SavedLinear(NamedTuple):
    """Tensors that the product keeps: its input, and weight and bias where they were cast.

    Of products in fp8: x transposed, its scale, the weight transposed, its scale.
    """

    layer: Linear
    x: Value
    parameters: tuple[Value, ...]
    """The weight, and the bias if there is one; or what stands behind x in fp8."""


def forward(
    on: Writer, layer: Linear, x: Value, *, category: Category = "temporaries"
) -> tuple[SavedLinear, Value]:
    """x (…, n_in) → (…, n_out) in the compute type; autocast casts what is not of it."""
    saved = casts(on, layer, x)
    weight, *bias = saved.parameters
    by_row = transposed(weight.operand)
    with on.module(layer.module):
        y = on.product(
            "addmm" if bias else "mm",
            rows(saved.x),
            weight.viewed(by_row),
            bias=bias[0] if bias else None,
            category=category,
            dear=True,
        )
    return saved, y.viewed(tensor(layer.compute, *x.operand.shape[:-1], layer.n_out))


def casts(on: Writer, layer: Linear, x: Value) -> SavedLinear:
    """Casts before the product: weight, bias and x in the compute type."""
    with on.module(layer.module):
        parameters = [on.parameter(layer.weight)]
        if layer.bias:
            parameters.append(on.parameter(layer.bias_vector, "bias"))
        cast = tuple([on.cast(each, layer.compute, category="weight_casts") for each in parameters])
        return SavedLinear(layer, on.cast(x, layer.compute), cast)


def backward(on: Writer, saved: SavedLinear, gradient: Value, x_dtype: str) -> Value:
    """Gradient of y (…, n_out) in the compute type → of x (…, n_in) in `x_dtype`; also of both
    parameters, in the type that they are kept in."""
    layer, flat = saved.layer, rows(gradient)
    weight, bias = of_type(layer.weight, layer.compute), of_type(layer.bias_vector, layer.compute)
    kept = (*on.saved(saved.x), *saved.parameters)
    done = layer.compute == layer.stored  # Else both wait for their casts.
    with on.module(layer.module):
        across = flat.viewed(transposed(flat.operand))
        of_weight = on.product("mm", across, rows(saved.x), held=kept, is_gradient=done)
        x = on.product("mm", flat, saved.parameters[0].viewed(weight), held=kept)
        x = x.viewed(tensor(layer.compute, *gradient.operand.shape[:-1], layer.n_in))
        parameters = [of_weight]
        if layer.bias:
            of_bias = on.reduced("sum", flat, 1, layer.n_out, is_gradient=done)
            parameters.append(of_bias.viewed(bias))
        x = on.cast(x, x_dtype)
        on.use(*parameters)
        for each in parameters:
            on.finished(each, layer.stored)
    return x


def rows(x: Value) -> Value:
    """x (…, features) as one matrix."""
    shape = x.operand.shape
    return x.viewed(tensor(x.operand.dtype, math.prod(shape[:-1]), shape[-1]))


# A linear layer whose weight is kept in 8 or 4 bits (`lab/models/layers.py`): one operator, and how its
# launch cuts it up (`kernels/ops/quantized_matmul/triton/settings.py`), of 132 multiprocessors.
#
# No gradient passes through one.

_SLOTS = 132
_CUT_TILE = 128
"""Inputs."""
_WARPS, _MOST_SPLITS = 8, 32
_FEW_ROWS, _LEAST_FILLED, _ALIGNED_BYTES = 16, 0.9, 16


class Cut(NamedTuple):
    """The cut of a product."""

    rows: int
    """Rows of x that one program takes: the weight is read once for so many."""
    n_splits: int
    """Programs that share the inputs of an output; more than one leave sums in fp32, added up after."""


def quantised_forward(on: Writer, layer: Linear, x: Value) -> tuple[SavedLinear, Value]:
    """x (…, n_in) → (…, n_out) in the compute type, with sums in fp32 where programs share the inputs."""
    *outer, _ = x.operand.shape
    y, n_rows = tensor(layer.compute, *outer, layer.n_out), math.prod(outer)
    stored = layer.quantised
    assert stored is not None
    shape = (n_rows, layer.n_in, layer.n_out)
    group = stored.format.group_size or layer.n_in
    n_splits = cut(*shape, bits=stored.bits, group=group, compute=layer.compute).n_splits
    sums = (n_splits * of_type(y, FLOAT).n_bytes,) if n_splits > 1 else ()
    with on.module(layer.module):
        given = (on.cast(x, layer.compute), *map(Value, stored.kept(layer.n_in, layer.n_out)))
        flops = 2 * x.operand.n_elements * layer.n_out
        (made,) = on.call(stored.operator, given, (y,), flops=flops, scratch=sums)
        if layer.bias:
            bias = on.cast(Value(layer.bias_vector), layer.compute, held=(made,))
            made = on.pointwise("add", made, bias)
    return SavedLinear(layer, x, ()), made


def cut(n_rows: int, n_in: int, n_out: int, *, bits: int, group: int, compute: str) -> Cut:
    """The cut of n_rows of x in that type, where a scale is of so many inputs."""
    n_tiles = -(-n_in // _CUT_TILE)
    if bits == 8 and compute != FLOAT and (n_rows <= _FEW_ROWS or n_in % _ALIGNED_BYTES == 0):
        return _cut_of_bytes(n_rows, n_tiles, n_out)
    rows, channels, warps, shares_x = _program(n_rows, n_out, group=group, compute=compute)
    n_programs = -(-n_out // channels) * -(-n_rows // rows)
    wanted = _WARPS if rows > 16 or compute == FLOAT else 2 * _WARPS
    least = 4 if shares_x else 2 * warps
    most = wanted * _SLOTS // max(1, n_programs * warps)
    return Cut(rows, max(1, min(most, n_tiles // least, _MOST_SPLITS)))


def _cut_of_bytes(n_rows: int, n_tiles: int, n_out: int) -> Cut:
    if n_rows == 1:
        rows, channels, least = 1, 8, 16
        if 1 < n_out / 8 / (6 * _SLOTS) < 1.5:
            channels, least = 4, 32
    else:
        rows, channels, least = min(64, max(8, 1 << (n_rows - 1).bit_length())), 128, 4
        if n_rows > _FEW_ROWS and -(-n_out // 128) < _LEAST_FILLED * _SLOTS <= -(-n_out // 64):
            return Cut(rows, 1)
    wanted = round(2 * _SLOTS / max(1, -(-n_out // channels)))
    n_splits = max(1, min(wanted, n_tiles // least, _MOST_SPLITS))
    return Cut(rows, n_splits if n_rows == 1 else -(-n_tiles // -(-n_tiles // n_splits)))


def _program(n_rows: int, n_out: int, *, group: int, compute: str) -> tuple[int, int, int, bool]:
    """Rows of x, outputs, warps, and whether the warps share x."""
    filled = -(-n_out // 16) / _SLOTS
    if compute == FLOAT:
        return 8, 16, 4, False
    if n_rows > 16:
        return (32 if n_rows <= 32 else 64), 16 * _WARPS, _WARPS, True
    if n_rows <= 8:
        return (8, 32, 4, False) if filled > 4 else (8, 16 if group >= 64 else 32, 8, False)
    alone = group >= 64 and 4 < filled <= _WARPS
    return (16, 32, 4, False) if alone else (16, 16 * _WARPS, _WARPS, True)


# A linear layer whose products are of fp8 numbers (`kernels/ops/fp8_linear`), in bf16 around them.

FP8_ROWS, FP8_DELAYED = "peakward.fp8_linear_rows", "peakward.fp8_linear_delayed_both"
_HISTORY = tensor(INT32, 19)
"""The largest magnitudes of the uses before, and what finds the next one (`fp8_linear/scales.py`)."""


def fp8_forward(on: Writer, layer: Linear, x: Value) -> tuple[SavedLinear, Value]:
    """x (…, n_in) → (…, n_out) in the compute type."""
    with on.module(layer.module):
        given, weight = rows(on.cast(x, layer.compute)), on.parameter(layer.weight)
        x_rows, x_columns, x_scale = cast_delayed(on, given, E4M3)
        w_rows, w_columns, w_scale = cast_delayed(on, weight, E4M3, held=(given,))
        y = fp8_product(on, (x_rows, x_scale), (w_rows, w_scale), layer.compute, dear=True)
        y = _with_bias(on, layer, y)
        on.use(x_rows, w_rows, given)  # Locals of the layer.
    return SavedLinear(layer, x_columns, (x_scale, w_columns, w_scale)), y.viewed(_result(layer, x))


def fp8_forward_alone(on: Writer, layer: Linear, x: Value) -> tuple[SavedLinear, Value]:
    """The same where no backward pass follows: nothing is transposed, and each scale is x's own."""
    with on.module(layer.module):
        given, weight = rows(on.cast(x, layer.compute)), on.parameter(layer.weight)
        x_scale, w_scale = _scale(on, given), _scale(on, weight, held=(given,))
        x_rows = _cast_rows(on, given, x_scale)
        w_rows = _cast_rows(on, weight, w_scale)
        y = fp8_product(on, (x_rows, x_scale), (w_rows, w_scale), layer.compute)
        y = _with_bias(on, layer, y)
        on.use(x_rows, w_rows, given)
    return SavedLinear(layer, x, ()), y.viewed(_result(layer, x))


def fp8_until_saved(on: Writer, layer: Linear, x: Value) -> SavedLinear:
    """As far as torch recomputes it: a function of our own is run whole."""
    return fp8_forward(on, layer, x)[0]


def fp8_backward(on: Writer, saved: SavedLinear, gradient: Value, x_dtype: str) -> Value:
    """Gradient of y (…, n_out) in the compute type → of x (…, n_in) in `x_dtype`; also of both
    parameters, in the type that they are kept in: the weight's comes out of its product so."""
    layer, flat = saved.layer, rows(gradient)
    with on.module(layer.module):
        kept = on.saved(saved.x, *saved.parameters)
        x_columns, x_scale, w_columns, w_scale = kept
        g_rows, g_columns, scale = cast_delayed(on, flat, E5M2, held=kept)
        x = fp8_product(on, (g_rows, scale), (w_columns, w_scale), layer.compute)
        fp8_product(on, (g_columns, scale), (x_columns, x_scale), layer.stored, is_gradient=True)
        if layer.bias:
            on.finished(on.reduced("sum", flat, layer.n_out), layer.stored)
        on.use(flat, g_rows, g_columns, scale, *kept)  # Locals of the function.
        x = x.viewed(tensor(layer.compute, *gradient.operand.shape[:-1], layer.n_in))
        return on.cast(x, x_dtype)


def _result(layer: Linear, x: Value) -> Operand:
    return tensor(layer.compute, *x.operand.shape[:-1], layer.n_out)


def _scale(on: Writer, x: Value, held: tuple[Value, ...] = ()) -> Value:
    """The power of two in fp32 that x is divided by, from the bits of the largest of its magnitudes."""
    (amax,) = on.call("linalg_vector_norm", (x,), (tensor(FLOAT),), held=held)
    bits = amax.viewed(tensor("int32"))
    for step in ("clamp", "add", "bitwise_and"):
        bits = on.pointwise(step, bits)
    return on.pointwise("add", bits.viewed(tensor(FLOAT)), amax)


def written_in_fp8(
    on: Writer,
    name: str,
    inputs: tuple[Value, ...],
    result: Operand,
    held: tuple[Value, ...] = (),
) -> tuple[Value, ...]:
    """A matrix in fp8 that an operator makes by delayed scales, the same transposed, and its scale."""
    made = (result, transposed(result), tensor(FLOAT))
    return on.call(name, inputs, made, held=held, changes=(_HISTORY,))


def cast_delayed(
    on: Writer, x: Value, dtype: str, held: tuple[Value, ...] = ()
) -> tuple[Value, ...]:
    """x in fp8, the same transposed, and its scale, from one pass over x."""
    return written_in_fp8(on, FP8_DELAYED, (x,), of_type(x.operand, dtype), held)


def _cast_rows(on: Writer, x: Value, scale: Value) -> Value:
    return on.call(FP8_ROWS, (x, scale), (of_type(x.operand, E4M3),))[0]


def _with_bias(on: Writer, layer: Linear, y: Value) -> Value:
    if not layer.bias:
        return y
    bias = on.cast(on.parameter(layer.bias_vector, "bias"), layer.compute, held=(y,))
    return on.pointwise("add", y, bias)


def fp8_product(
    on: Writer,
    a: tuple[Value, Value],
    b: tuple[Value, Value],
    dtype: str,
    *,
    dear: bool = False,
    is_gradient: bool = False,
) -> Value:
    """a (m, k) times the transposed of b (n, k), each with its scale → (m, n) in `dtype`; it may be a
    parameter's gradient."""
    (left, a_scale), (right, b_scale) = a, b
    (m, k), n = left.operand.shape, right.operand.shape[0]
    across = right.viewed(transposed(right.operand))
    made = (tensor(dtype, m, n),)
    return on.call(
        "_scaled_mm",
        (left, across, a_scale, b_scale),
        () if is_gradient else made,
        flops=2 * m * k * n,
        dear=dear,
        parameters=made if is_gradient else (),
    )[0]


# How the linear layers of the blocks compute: in the compute type, in fp8, or with quantised weights.


class Products(NamedTuple):
    """The functions of `linear`, or those of another kind of layer."""

    forward: Callable[[Writer, Linear, Value], tuple[SavedLinear, Value]]
    until_saved: Callable[[Writer, Linear, Value], SavedLinear]
    """As far as the layer is recomputed where it is the last of its run."""
    backward: Callable[[Writer, SavedLinear, Value, str], Value]


_PLAIN = Products(forward, casts, backward)
_FP8 = Products(fp8_forward, fp8_until_saved, fp8_backward)
_FP8_ALONE = _FP8._replace(forward=fp8_forward_alone)
_QUANTISED = _PLAIN._replace(forward=quantised_forward)
"""Products of passes without gradients, which have only a forward product."""


def products(plan: Plan) -> Products:
    """The products of the blocks; the output layer's are always plain."""
    if plan.quantised is not None:
        return _QUANTISED
    if plan.precision == "fp8":
        return _FP8 if plan.differentiated else _FP8_ALONE
    return _PLAIN


# The linear layers of a block with one feed-forward network.

BLOCK = "blocks.*"


class Layers(NamedTuple):
    """`qkv` and `up` each stand for what the decoder packs in them."""

    qkv: Linear
    out: Linear
    up: Linear
    down: Linear


def layers(plan: Plan) -> Layers:
    """In the order in which they run; of several networks `experts.layers` are the last ones."""
    shape = plan.shape
    query, heads = shape.n_heads * shape.head_dim, shape.n_heads + 2 * shape.n_kv_heads
    width = 2 * shape.d_ff if shape.gated else shape.d_ff
    types = (plan.stored, plan.compute, plan.quantised)
    return Layers(
        qkv=Linear(
            f"{BLOCK}.attention.qkv", shape.d_model, heads * shape.head_dim, shape.qkv_bias, *types
        ),
        out=Linear(f"{BLOCK}.attention.out", query, shape.d_model, shape.bias, *types),
        up=Linear(f"{BLOCK}.ff.up", shape.d_model, width, shape.bias, *types),
        down=Linear(f"{BLOCK}.ff.down", shape.d_ff, shape.d_model, shape.bias, *types),
    )
