"""The bytes that an operator has to read and write, from the shapes and types of its arguments.

Each input and each output counts once, as if dense: the shapes show neither repeated reads nor inputs that a
stride of 0 expands. Only operators whose output follows from a trace's records are covered.
"""

import math
from collections.abc import Callable

from peakward.traces.arguments import Arguments, NotRecordedError


def n_bytes(operator: str, arguments: Arguments) -> int | None:
    """The bytes; None for an operator of which too little is known or recorded."""
    formula = _FORMULAS.get(operator)
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


def _product(first: int) -> Callable[[Arguments], int]:
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
_FORMULAS: dict[str, Callable[[Arguments], int]] = {
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
    "aten::mm": _product(0),
    "aten::bmm": _product(0),
    "aten::addmm": _product(1),
    "aten::baddbmm": _product(1),
}
