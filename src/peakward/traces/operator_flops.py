"""The floating-point operations that an operator's maths needs, from the shapes of its arguments.

A matmul counts two for each multiply-add; other operators count none. Causal attention counts half. A
backward pass of attention counts four matmuls for the forward pass's two: the maths does not need the scores
that a fused kernel computes again.
"""

import math
from collections.abc import Callable

from peakward.traces.arguments import Arguments, NotRecordedError


def flops(operator: str, arguments: Arguments) -> int | None:
    """The FLOPs; None for an operator that is no matmul, convolution or attention, or whose records are
    incomplete."""
    formula = _FORMULAS.get(operator)
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


_FORMULAS: dict[str, Callable[[Arguments], int]] = {
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
