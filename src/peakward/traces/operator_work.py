"""The FLOPs and bytes that an operator's maths needs, from its recorded arguments.

A matmul counts two for each multiply-add; other operators count none. Causal attention counts half. A
backward pass of attention counts four matmuls for the forward pass's two: the maths does not need the scores
that a fused kernel computes again.

Each input and each output counts once, as if dense: the shapes show neither repeated reads nor inputs that a
stride of 0 expands. Only operators whose output follows from a trace's records are covered.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_ITEM_BYTES = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1,
    "long int": 8, "long": 8, "long long": 8, "int": 4, "short": 2, "short int": 2,
    "signed char": 1, "unsigned char": 1, "bool": 1,
    "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip
_BOOLS = {"True": True, "False": False, "1": True, "0": False}


class NotRecordedError(LookupError):
    """The trace does not record the requested property of an argument."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """An operator's arguments by position. Every method raises NotRecordedError where the trace has no clear
    answer."""

    dims: list[Any]
    types: list[Any]
    concrete: list[Any]

    def shape(self, i: int, rank: int | None = None) -> tuple[int, ...]:
        """The shape of a tensor argument; with `rank`, only of that rank."""
        dims = _at(self.dims, i)
        if not isinstance(dims, list) or not all(type(dim) is int for dim in dims):
            raise NotRecordedError
        if rank is not None and len(dims) != rank:
            raise NotRecordedError
        return tuple(dims)

    def is_tensor(self, i: int) -> bool:
        """Whether an argument is one tensor of a known type."""
        return i < len(self.types) and str(self.types[i]) in _ITEM_BYTES

    def item_bytes(self, i: int) -> int:
        """Bytes of an element of a tensor argument."""
        if not self.is_tensor(i):
            raise NotRecordedError
        return _ITEM_BYTES[self.types[i]]

    def n_bytes(self, i: int) -> int:
        """Bytes of a tensor argument as if it were dense: a trace's shapes do not show expanded tensors."""
        return math.prod(self.shape(i)) * self.item_bytes(i)

    def boolean(self, i: int) -> bool:
        """A recorded True or False."""
        value = str(_at(self.concrete, i))
        if value not in _BOOLS:
            raise NotRecordedError
        return _BOOLS[value]

    def listed(self, i: int) -> list[int]:
        """A recorded list of integers or booleans."""
        try:
            value = json.loads(str(_at(self.concrete, i)).lower())
        except ValueError as error:
            raise NotRecordedError from error
        if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
            raise NotRecordedError
        return value


def parsed(shape: str) -> Arguments:
    """The arguments of an entry of `Table.shapes`. Missing parts, and parts that are not lists, are empty."""
    try:
        parts = json.loads(shape)
    except ValueError:
        parts = None
    parts = parts if isinstance(parts, list) else []
    lists = [part if isinstance(part, list) else [] for part in parts[:3]]
    return Arguments(*lists, *([] for _ in range(3 - len(lists))))


def _at(values: list[Any], i: int) -> Any:
    if i >= len(values):
        raise NotRecordedError
    return values[i]


def operator_flops(operator: str, arguments: Arguments) -> int | None:
    """The FLOPs; None for an operator that is no matmul, convolution or attention, or whose records are
    incomplete."""
    formula = _FLOPS.get(operator)
    if formula is None:
        return None
    try:
        return formula(arguments)
    except NotRecordedError:
        return None


def _product(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """FLOPs of [..., m, k] times [..., k, n]. A vector stands for one row or column."""
    a = (1, *a) if len(a) == 1 else a
    b = (*b, 1) if len(b) == 1 else b
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        raise NotRecordedError
    return 2 * _broadcast(a[:-2], b[:-2]) * a[-2] * a[-1] * b[-1]


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """The number of elements that two shapes broadcast to."""
    length = max(len(a), len(b))
    pairs = zip((1,) * (length - len(a)) + a, (1,) * (length - len(b)) + b, strict=True)
    return math.prod(y if x == 1 else x for x, y in pairs)


def _matmul(first: int, rank: int | None = None) -> Callable[[Arguments], int]:
    """FLOPs of the matmul of the arguments at `first` and after it."""

    def formula(arguments: Arguments) -> int:
        return _product(arguments.shape(first, rank), arguments.shape(first + 1, rank))

    return formula


def _grouped(arguments: Arguments) -> int:
    """FLOPs of a grouped product of two matrices, or of a matrix and a batch: each group of the split row or
    column meets one matrix. For two batches, every pair counts."""
    a, b = arguments.shape(0), arguments.shape(1)
    return _product(a, b) if len(a) == len(b) == 3 else _product(a[-2:], b[-2:])


def _linear(arguments: Arguments) -> int:
    """FLOPs for an input [..., k] and a weight [n, k]."""
    n, k = arguments.shape(1, rank=2)
    return _product(arguments.shape(0), (k, n))


def _attention(query: int, causal: int, n_matmuls: int) -> Callable[[Arguments], int]:
    """FLOPs for a query [batch, heads, s, d] at `query`, then key [.., t, d] and value [.., t, dv]."""

    def formula(arguments: Arguments) -> int:
        batch, heads, n_queries, size = arguments.shape(query, rank=4)
        n_keys = arguments.shape(query + 1, rank=4)[2]
        value_size = arguments.shape(query + 2, rank=4)[3]
        products = batch * heads * n_queries * n_keys * (size + value_size)
        return n_matmuls * products // (2 if arguments.boolean(causal) else 1)

    return formula


def _convolution(transposed: int | None, stride: int, padding: int, dilation: int,
                 weight: int = 1) -> Callable[[Arguments], int]:  # fmt: skip
    """FLOPs for an input [n, in, ...] and a weight [out, in / groups, ...], or for `transposed` [in, out /
    groups, ...]."""

    def formula(arguments: Arguments) -> int:
        shape, kernel = arguments.shape(0), arguments.shape(weight)
        if len(shape) != len(kernel) or len(shape) < 3:
            raise NotRecordedError
        each = 2 * math.prod(kernel[1:])
        if transposed is not None and arguments.boolean(transposed):
            return each * math.prod(shape)
        positions = _positions(
            shape[2:],
            kernel[2:],
            *(arguments.listed(at) for at in (stride, padding, dilation)),
        )
        return each * shape[0] * kernel[0] * positions

    return formula


def _positions(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> int:
    """The number of output positions. One number may stand for every dimension."""
    stride, padding, dilation = (
        each * len(size) if len(each) == 1 else each for each in (stride, padding, dilation)
    )
    if not len(size) == len(stride) == len(padding) == len(dilation) or 0 in stride:
        raise NotRecordedError
    return math.prod(
        (size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in range(len(size))
    )


def _convolution_backward(arguments: Arguments) -> int:
    """One product of the forward pass's size for each requested gradient, of the input and of the weight."""
    transposed, mask = arguments.boolean(7), arguments.listed(10)
    outer = arguments.shape(1 if transposed else 0)
    return 2 * math.prod(outer) * math.prod(arguments.shape(2)[1:]) * sum(map(bool, mask[:2]))


_FLOPS: dict[str, Callable[[Arguments], int]] = {
    "aten::mm": _matmul(0, 2),
    "aten::_scaled_mm": _matmul(0, 2),
    "aten::_int_mm": _matmul(0, 2),
    "aten::_grouped_mm": _grouped,
    "aten::mv": _matmul(0),
    "aten::dot": _matmul(0, 1),
    "aten::addmm": _matmul(1, 2),
    "aten::_addmm_activation": _matmul(1, 2),
    "aten::addmv": _matmul(1),
    "aten::bmm": _matmul(0, 3),
    "aten::baddbmm": _matmul(1, 3),
    "aten::matmul": _matmul(0),
    "aten::linear": _linear,
    "aten::_scaled_dot_product_flash_attention": _attention(0, 4, 2),
    "aten::_scaled_dot_product_efficient_attention": _attention(0, 6, 2),
    "aten::_scaled_dot_product_cudnn_attention": _attention(0, 6, 2),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(1, 11, 4),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(1, 11, 4),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(1, 14, 4),
    "peakward::flash_attention": _attention(0, 4, 2),
    "peakward::flash_attention_backward": _attention(2, 8, 4),
    "aten::convolution": _convolution(6, 3, 4, 5),
    "aten::_convolution": _convolution(6, 3, 4, 5),
    "aten::cudnn_convolution": _convolution(None, 3, 2, 4),
    "aten::miopen_convolution": _convolution(None, 4, 3, 5),
    "aten::convolution_backward": _convolution_backward,
}
"""Positions of arguments as in PyTorch's native_functions.yaml, and in `kernels/ops/flash_attention`."""


def operator_bytes(operator: str, arguments: Arguments) -> int | None:
    """The bytes; None for an operator of which too little is known or recorded."""
    formula = _BYTES.get(operator)
    if formula is None:
        return None
    try:
        return formula(arguments)
    except NotRecordedError:
        return None


def _tensors(arguments: Arguments) -> list[int]:
    """Positions of the tensors, without single numbers if there are larger ones."""
    tensors = [i for i in range(len(arguments.dims)) if arguments.is_tensor(i)]
    return [i for i in tensors if arguments.shape(i)] or tensors


def _elementwise(arguments: Arguments) -> int:
    """Reads every tensor, and writes one of the shape they broadcast to; all have one type."""
    tensors = _tensors(arguments)
    if len({arguments.types[i] for i in tensors}) != 1:
        raise NotRecordedError
    shapes = [arguments.shape(i) for i in tensors]
    rank = max(len(shape) for shape in shapes)
    columns = zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True)
    n_written = math.prod(0 if 0 in column else max(column) for column in columns)
    read = sum(arguments.n_bytes(i) for i in tensors)
    return int(read + n_written * arguments.item_bytes(tensors[0]))


def _softmax(arguments: Arguments) -> int:
    """Reads the tensor and writes one that is wider where argument 2 says so."""
    if arguments.boolean(2):
        raise NotRecordedError
    return 2 * arguments.n_bytes(0)


def _softmax_backward(arguments: Arguments) -> int:
    """Reads two tensors and writes one of the type in argument 3."""
    written = _TYPE_BYTES.get(str(arguments.concrete[3:4]))
    if written is None:
        raise NotRecordedError
    read = arguments.n_bytes(0) + arguments.n_bytes(1)
    return read + math.prod(arguments.shape(0)) * written


def _in_place(arguments: Arguments) -> int:
    """Reads every tensor and writes the first."""
    return sum(arguments.n_bytes(i) for i in _tensors(arguments)) + arguments.n_bytes(0)


def _written(arguments: Arguments) -> int:
    return arguments.n_bytes(0)


def _copied(arguments: Arguments) -> int:
    """Copies the second argument, which may be smaller or of another type, into the first."""
    return arguments.n_bytes(0) + arguments.n_bytes(1)


def _reduced(arguments: Arguments) -> int:
    """Reduces over the dimensions listed in argument 1, or over all, in the input's own type."""
    shape = arguments.shape(0)
    over = arguments.listed(1) if _is_listed(arguments) else list(range(len(shape)))
    kept = set(range(len(shape))) - {dim % max(len(shape), 1) for dim in over}
    n_written = math.prod(shape[dim] for dim in kept)
    return arguments.n_bytes(0) + n_written * arguments.item_bytes(0)


def _is_listed(arguments: Arguments) -> bool:
    return len(arguments.concrete) > 1 and str(arguments.concrete[1]).startswith("[")


def _product_bytes(first: int) -> Callable[[Arguments], int]:
    """Multiplies two matrices, or batches of them, at `first`; reads the arguments before them too."""

    def formula(arguments: Arguments) -> int:
        a, b = arguments.shape(first), arguments.shape(first + 1)
        if len(a) != len(b) or len(a) < 2:
            raise NotRecordedError
        read = sum(arguments.n_bytes(i) for i in range(first + 2))
        return read + math.prod(a[:-1]) * b[-1] * arguments.item_bytes(first)

    return formula


_TYPE_BYTES = {"['5']": 2, "['6']": 4, "['7']": 8, "['15']": 2}
"""Bytes by the text of a ScalarType: half, float, double and bfloat16."""
_ELEMENTWISE = (
    "abs", "add", "sub", "rsub", "mul", "div", "neg", "exp", "log", "sqrt", "rsqrt", "reciprocal",
    "pow", "sin", "cos", "tanh", "sigmoid", "relu", "gelu", "silu", "silu_backward",
    "gelu_backward", "tanh_backward", "sigmoid_backward", "threshold_backward", "maximum",
    "minimum", "addcmul", "addcdiv", "lerp", "clamp", "clone",
)  # fmt: skip
_IN_PLACE = (
    "add_", "sub_", "mul_", "div_", "neg_", "exp_", "sqrt_", "pow_", "relu_", "silu_", "addcmul_",
    "addcdiv_", "lerp_", "clamp_",
)  # fmt: skip
_BYTES: dict[str, Callable[[Arguments], int]] = {
    **{f"aten::{name}": _elementwise for name in _ELEMENTWISE},
    **{f"aten::{name}": _in_place for name in _IN_PLACE},
    "aten::fill_": _written,
    "aten::zero_": _written,
    "aten::copy_": _copied,
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
    "aten::_softmax_backward_data": _softmax_backward,
    "aten::_log_softmax_backward_data": _softmax_backward,
    "aten::sum": _reduced,
    "aten::mean": _reduced,
    "aten::mm": _product_bytes(0),
    "aten::bmm": _product_bytes(0),
    "aten::addmm": _product_bytes(1),
    "aten::baddbmm": _product_bytes(1),
}
