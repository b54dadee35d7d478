"""Operators as Inductor lowers them: loops over elements or along rows, which may fuse, and calls, which end
a fusion.

What torch has as one operator with a reduction in it, a norm or a softmax, is its parts here: the figures of
each row, and what is made of these element by element. So is its gradient. Of the loops each value is one
write; a call may write several.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from peakward.prediction.operators.tape import FLOAT, tensor
from peakward.records.op_graph import ITEM_BYTES, Operand, Operator

Kind = Literal["pointwise", "inner", "outer", "scatter", "call"]
"""Over elements; with a reduction along the rows, or across them; adding to places that a value names; by
torch, in a kernel of its own. A scatter reads what it adds to last."""
UNROLLED = 8
"""Sums of fewer terms are written out in a loop over elements (`config.unroll_reductions_threshold`)."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_POINTWISE = _names(
    """
    abs acos acosh add addcdiv addcmul arange asin asinh atan atan2 atanh bernoulli bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor cat ceil clamp
    clamp_max clamp_min clone constant_pad_nd copy copysign cos cosh deg2rad diagonal_copy div
    elu elu_backward embedding eq erf erfc erfinv exp exp2 expand_copy expm1 fill flip floor
    floor_divide fmax fmin fmod frac full full_like gather ge gelu gelu_backward glu gt
    hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward
    index index_select isfinite isinf isnan le leaky_relu leaky_relu_backward lerp lift_fresh
    log log10 log1p log2 log_sigmoid_backward log_sigmoid_forward logical_and logical_not
    logical_or logical_xor logit lt masked_fill maximum minimum mish mul native_dropout_backward ne neg
    new_full new_ones new_zeros nll_loss_backward ones ones_like polar pow prelu rand rand_like
    randn randn_like reciprocal relu remainder repeat roll round rsqrt rsub scalar_tensor
    select_backward sgn sigmoid sigmoid_backward sign silu silu_backward sin sinh slice_backward
    slice_scatter softplus softplus_backward sqrt square stack sub tan tanh tanh_backward
    threshold threshold_backward tril triu trunc where xlogy zero zeros zeros_like _to_copy
    """
)
RANDOM = frozenset({"bernoulli", "native_dropout", "rand", "rand_like", "randn", "randn_like"})
_REDUCTIONS = _names(
    """
    all amax amin any argmax argmin linalg_vector_norm logsumexp max mean min prod std sum var
    var_mean
    """
)
_SHAPE_ALONE = _names(
    """
    full_like new_full new_ones new_zeros ones_like rand_like randn_like zeros_like
    """
)
"""They read nothing of what they are given."""


class Read(NamedTuple):
    """A value as a loop reads it."""

    value: int
    operand: Operand
    offset: int
    """The number of its first element in the memory of the value."""
    n_bytes: int
    """Bytes of its elements in memory."""


class Loop(NamedTuple):
    """A loop that writes one value, or a call."""

    name: str
    """The name of torch's operator, without "aten."."""
    operator: int
    """Its index in the graph."""
    backward: bool
    kind: Kind
    n: int
    """Elements that are written, one for each row of a reduction."""
    r: int
    """Elements that each is a sum of; 1 of a loop without a sum."""
    reads: tuple[Read, ...]
    writes: tuple[int, ...]

    @property
    def is_random(self) -> bool:
        """Whether it draws."""
        return self.name in RANDOM


New = Callable[[Operand], int]
"""Makes a value that torch's own operator keeps to itself."""


class Given(NamedTuple):
    """A call of an operator, as it is lowered."""

    name: str
    place: int
    """The index of the operator in the graph."""
    operator: Operator
    reads: tuple[Read, ...]
    writes: tuple[int, ...]
    made: tuple[Operand, ...]
    """The results."""
    new: New

    def loop(
        self, kind: Kind, n: int, r: int, reads: Sequence[Read], *writes: int, name: str = ""
    ) -> Loop:
        """A loop of it."""
        backward = self.operator.phase == "backward"
        known = tuple(dict.fromkeys(reads))
        return Loop(name or self.name, self.place, backward, kind, n, r, known, writes)

    def over(self, written: int, reads: Sequence[Read]) -> Loop:
        """A loop over the elements of a result."""
        return self.loop(
            "pointwise", self.made[self.writes.index(written)].n_elements, 1, reads, written
        )

    def figure(self, x: Operand, reads: Sequence[Read]) -> tuple[Read, Loop]:
        """A figure of each row of x, which stays between the operator's loops."""
        row = tensor(FLOAT, *x.shape[:-1], 1)
        value = self.new(row)
        return whole(value, row), self.loop("inner", row.n_elements, x.shape[-1], reads, value)


def whole(value: int, operand: Operand) -> Read:
    """All of a value."""
    return Read(value, operand, 0, operand.n_bytes)


def loops(given: Given) -> list[Loop]:
    """The loops of one operator. What is not known here is a call."""
    if _is_complex(given):
        return [_call(given)]
    if given.name == "_to_copy" and given.reads[0].operand == given.made[0]:
        # To the host, for which an operator within waits, as a loop over groups of rows.
        return [given.loop("call", 0, 1, given.reads)]
    parts = _PARTS.get(given.name)
    if parts is not None:
        return list(parts(given))
    if given.name in PRODUCTS:
        return _product(given)
    if given.name in _REDUCTIONS:
        return [_reduction(given, each) for each in given.writes]
    if given.name in _POINTWISE and len(given.writes) == 1:
        return [given.over(given.writes[0], _read(given))]
    return [_call(given)]


def _call(given: Given) -> Loop:
    n = sum(each.n_elements for each in given.made)
    return given.loop("call", n, 1, given.reads, *given.writes)


def _is_complex(given: Given) -> bool:
    """Inductor writes no code for complex numbers, and calls torch (`unsupported_input_tensor`)."""
    operands = (*(each.operand for each in given.reads), *given.made)
    return any(each.dtype.startswith("complex") for each in operands)


def _read(given: Given) -> tuple[Read, ...]:
    """The operands that a loop over elements reads: of a table, the rows that are looked up."""
    if given.name in _SHAPE_ALONE:
        return ()
    if given.name == "nll_loss_backward":
        gradient, _, *others = given.reads
        return (gradient, *others)
    if given.name in ("embedding", "index", "index_select", "gather"):
        table, *places = given.reads
        looked_up = min(table.n_bytes, given.made[0].n_elements * ITEM_BYTES[table.operand.dtype])
        return (table._replace(n_bytes=looked_up), *places)
    return given.reads


def _reduction(given: Given, written: int) -> Loop:
    x, result = given.reads[0].operand, given.made[given.writes.index(written)]
    n = max(1, result.n_elements)
    r = max(1, x.n_elements // n)
    if r < UNROLLED:
        return given.loop("pointwise", n, 1, given.reads, written)
    return given.loop("inner" if _along_rows(x, result) else "outer", n, r, given.reads, written)


def _along_rows(x: Operand, result: Operand) -> bool:
    """Whether the last dimension is summed over."""
    if result.n_elements == 1 or not x.shape:
        return True
    if len(x.shape) == len(result.shape):
        return x.shape[-1] != result.shape[-1]
    return x.shape[: len(result.shape)] == result.shape


# Products, of which Inductor pads what is not aligned (torch/_inductor/fx_passes/pad_mm.py).

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
"""Calls that may be padded."""
INTO_BUFFERS = (*PRODUCTS, "_scaled_mm")
"""Calls that write to a buffer which they are given."""
ALIGNED_ELEMENTS = 8
"""In each dimension, of matrices in 16 bits. No fp32 product, which it pads to 4, is predicted to gain."""
_COMPUTE_BOUND = 148.0
"""Half the FLOPs of an H100 for each byte of its memory, above whose arithmetic intensity a product is taken
for bound by them; then padding is timed, and pays where cuBLAS has slow kernels."""


def _product(given: Given) -> list[Loop]:
    """The product, and before it what pads its matrices."""
    *bias, a, b = given.reads if len(given.reads) > 1 else given.reads * 2
    (m, k), n = a.operand.shape[-2:], b.operand.shape[-1]
    found: list[Loop] = []
    if ITEM_BYTES[a.operand.dtype] == 2 and pads(m, k, n):
        a = _padded(given, a, (_up(m), _up(k)), found)
        b = _padded(given, b, (_up(k), _up(n)), found)
    (made,) = given.made
    call = given.loop("call", made.n_elements, 1, (), *given.writes)
    return [*found, call._replace(reads=(*bias, a, b))]


def pads(m: int, k: int, n: int) -> bool:
    """Whether the matrices of such a product, in 16 bits, are padded."""
    if all(_up(each) == each for each in (m, k, n)):
        return False
    return m * n * k > _COMPUTE_BOUND * (m * k + k * n + m * n)


def _up(size: int) -> int:
    return size if size == 1 else -(-size // ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS


def _padded(given: Given, x: Read, sizes: tuple[int, int], found: list[Loop]) -> Read:
    if x.operand.shape[-2:] == sizes:
        return x
    operand = tensor(x.operand.dtype, *x.operand.shape[:-2], *sizes)
    value = given.new(operand)
    pad = given.loop("pointwise", operand.n_elements, 1, (x,), value, name="constant_pad_nd")
    found.append(pad)
    return whole(value, operand)


# Operators with a reduction in them, by their parts (torch/_decomp/decompositions.py).

Parts = Callable[[Given], Iterator[Loop]]


def _norm(given: Given) -> Iterator[Loop]:
    """x with its weights → normalised, and the figures of each row."""
    y, *kept = given.writes
    x, rest = given.reads[0], given.reads[1:]
    figures = [whole(each, made) for each, made in zip(kept, given.made[1:], strict=True)]
    for each in figures:
        n = each.operand.n_elements
        yield given.loop("inner", n, x.operand.n_elements // max(1, n), [x], each.value)
    yield given.over(y, (x, *figures, *rest))


def _norm_backward(given: Given) -> Iterator[Loop]:
    """The gradient, x and the figures of each row → gradients of x and of the weights, all of them by way of
    x normalised, which a kernel writes where much is read for it."""
    gradient, x, *rest = given.reads
    if given.name == "native_layer_norm_backward":
        rest = rest[:3]  # Mean, deviation and weight; a bias behind them is no factor of anything.
    figures = [
        each
        for each in rest
        if each.operand.n_elements * x.operand.shape[-1] == x.operand.n_elements
    ]
    wide = tensor(FLOAT, *x.operand.shape)
    normalised = whole(given.new(wide), wide)
    yield given.loop("pointwise", wide.n_elements, 1, (x, *figures), normalised.value)
    for written, made in zip(given.writes, given.made, strict=True):
        if made.shape == x.operand.shape:
            reads = (gradient, normalised, *rest)
            row, loop = given.figure(x.operand, reads)
            yield loop
            yield given.over(written, (*reads, row))
        elif made.n_elements:
            n = made.n_elements
            reads = (gradient, normalised)
            yield given.loop("outer", n, x.operand.n_elements // n, reads, written)


def _softmax(given: Given) -> Iterator[Loop]:
    """The scores → their largest of each row, the sum of exponentials, and the weights."""
    x = given.reads[0]
    most, loop = given.figure(x.operand, [x])
    yield loop
    total, loop = given.figure(x.operand, [x, most])
    yield loop
    yield given.over(given.writes[0], (x, most, total))


def _softmax_backward(given: Given) -> Iterator[Loop]:
    total, loop = given.figure(given.reads[0].operand, given.reads)
    yield loop
    yield given.over(given.writes[0], (*given.reads, total))


def _loss(given: Given) -> Iterator[Loop]:
    """Logarithms of probabilities, of which one in each row is read, and targets → the loss and a count."""
    probabilities, *targets = given.reads
    n_rows = targets[0].operand.n_elements
    one_each = n_rows * ITEM_BYTES[probabilities.operand.dtype]
    reads = (probabilities._replace(n_bytes=one_each), *targets)
    loss, *count = given.writes
    yield given.loop("inner", 1, n_rows, reads, loss)
    for each in count:
        yield given.loop("inner", 1, n_rows, targets, each)


def _dropout(given: Given) -> Iterator[Loop]:
    """x → kept or dropped, and which."""
    y, mask = given.writes
    drawn = whole(mask, given.made[1])
    yield given.over(mask, ())
    yield given.over(y, (given.reads[0], drawn))._replace(name="mul")


def _table_gradient(given: Given) -> Iterator[Loop]:
    """Zeros, to which each row is added in fp32, and of a narrow table the cast."""
    table = given.made[0]
    sums = given.writes[0]
    if table.dtype != FLOAT:
        sums = given.new(tensor(FLOAT, *table.shape))
    wide = whole(sums, tensor(FLOAT, *table.shape))
    zeros = given.new(wide.operand)
    yield given.loop("pointwise", table.n_elements, 1, (), zeros, name="full")
    added = given.reads[0].operand.n_elements
    reads = (*given.reads, whole(zeros, wide.operand)._replace(n_bytes=4 * added))
    yield given.loop("scatter", added, 1, reads, sums)
    if table.dtype != FLOAT:
        yield given.loop(
            "pointwise", table.n_elements, 1, (wide,), given.writes[0], name="_to_copy"
        )


def _put(given: Given) -> Iterator[Loop]:
    """Values go to places of a tensor, or are added there: of it as many bytes move as go there at most."""
    x, *others = given.reads
    n = max(each.operand.n_elements for each in others)
    there = min(x.n_bytes, n * ITEM_BYTES[x.operand.dtype])
    reads = (*others, x._replace(n_bytes=there))
    yield given.loop("scatter", n, 1, reads, given.writes[0])


_PARTS: dict[str, Parts] = {
    "native_layer_norm": _norm,
    "_fused_rms_norm": _norm,
    "native_layer_norm_backward": _norm_backward,
    "_fused_rms_norm_backward": _norm_backward,
    "_softmax": _softmax,
    "_safe_softmax": _softmax,
    "_log_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _softmax_backward,
    "nll_loss_forward": _loss,
    "native_dropout": _dropout,
    "embedding_dense_backward": _table_gradient,
    "index_put": _put,
    "_index_put_impl": _put,
    "scatter": _put,
    "scatter_add": _put,
}
