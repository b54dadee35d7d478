"""The category of each row of a table's work: by its kernel's name, its operator, or what Inductor fused.

Inductor names a kernel `triton_<kind>_fused_<operators>_<number>`. The kind is the first three letters of how
the kernel is scheduled. The operators are those of the graph before decomposition, sorted, each once, joined
with underscores (torch 2.13: `_inductor/codegen/triton.py`, `define_kernel`; `_inductor/utils.py`,
`get_fused_kernel_name`). Operators' own names have underscores too, so they are looked up in a list.

The operator that shapes a fused kernel decides: a kernel that normalises is a normalisation, whatever else it
adds and casts. That order is the order here. A kernel's name also has operators whose results it only reads,
casts or pads: a pointwise kernel names a reduction (`mean`), and both name a product that another kernel
computed (`_scaled_mm`). So the kind tells which kernels reduce, and only a template holds a product, a
convolution or attention, or a reduction whose name has nothing else that could have summed.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple, cast, get_args

import numpy as np

from peakward.traces.category_rules import RULES, WRAPPER, Category
from peakward.traces.host_work import is_of_host
from peakward.traces.kernel_names import parse
from peakward.traces.table import Codes, GpuKind, TraceTable

CATEGORIES = tuple(Category)


def row_categories(table: TraceTable) -> Codes:
    """For each GPU row the position of its category in CATEGORIES.

    The category follows from the kernel's name, or without a GPU from the operator's. It is computed once for
    each name.
    """
    gpu, names = table.gpu, table.names
    if not len(gpu):
        return np.zeros(0, dtype=np.uint8)
    on_host = is_of_host(table)
    codes = np.zeros((len(GpuKind), len(names)), dtype=np.uint8)
    found = np.zeros(codes.shape, dtype=np.bool_)
    found[gpu.kind, gpu.name] = True
    for kind, name in np.argwhere(found).tolist():
        told = operator_category(names[name]) if on_host else category(names[name], GpuKind(kind))
        codes[kind, name] = CATEGORIES.index(told)
    of_row: Codes = codes[gpu.kind, gpu.name]
    return of_row


def category(name: str, kind: GpuKind) -> Category:
    """The category of a kernel, copy or set. Ask once for each name of a trace."""
    if kind is not GpuKind.KERNEL:
        return Category.MEMORY
    if kernel := fused(name):
        return fused_category(kernel)
    told = _telling(name)
    return next((rule.category for rule in RULES if rule.pattern.search(told)), Category.OTHER)


def _telling(name: str) -> str:
    """The part of a name that tells the kernel's purpose."""
    function = parse(name)
    if function.arguments and WRAPPER.search(function.own):
        return f"{function.path}<{function.arguments}>"
    return function.path


_AROUND = re.compile(
    r"autograd::engine::|torch::autograd::|torch::jit::|\w*[a-zA-Z0-9]Backward\d*$|\[memory\]|detach_?$"
)
"""Autograd's nodes. Their computation is in the operators inside them."""
_COMPILED = re.compile(r"CompiledFunction|Torch-Compiled Region|## Call CompiledFxGraph")
"""Rows that contain compiled code of any category."""
_FRAMEWORK_NAMES = """
    H T _local_scalar_dense _reshape_alias _unsafe_view alias as_strided as_strided_ broadcast_to
    broadcast_tensors can_cast chunk conj detach diagonal empty empty_like empty_permuted
    empty_strided expand expand_as flatten index_select_backward is_nonzero is_same_size item
    lift_fresh mH mT movedim narrow new_empty new_empty_strided numpy_T permute promote_types ravel
    record_stream requires_grad_ reshape resize_ resize_as_ resolve_conj resolve_neg result_type
    select set_ set_data slice split split_with_sizes squeeze squeeze_ swapaxes swapdims t t_
    tensor_split transpose transpose_ unbind unflatten unfold unsafe_chunk unsafe_split
    unsafe_split_with_sizes unsqueeze unsqueeze_ view view_as _version output_nr
"""
_FRAMEWORK = frozenset(_FRAMEWORK_NAMES.split())
"""Operators that neither compute nor move anything."""
_REDUCTION = re.compile(
    r"_?(?:sum|mean|amax|amin|aminmax|max|min|prod|var|std|var_mean|std_mean|norm|any|all|argmax|"
    r"argmin|count_nonzero|cumsum|cumprod|linalg_vector_norm|foreach_norm|equal)(?:_dim)?_?$"
)


def operator_category(name: str) -> Category:
    """The category of an operator. Ask once for each name of a trace.

    An operator that calls others, as `aten::linear` calls `aten::addmm`, has the category of its purpose. A
    norm that is written out counts by its parts. Compiled code is OTHER.
    """
    if _COMPILED.match(name):
        return Category.OTHER
    if _AROUND.match(name):
        return Category.FRAMEWORK
    own = name.rpartition("::")[2]
    plain = own.removesuffix("_") if not own.endswith("__") else own
    if own in _FRAMEWORK or plain in _FRAMEWORK:
        return Category.FRAMEWORK
    if found := shaping((plain,)):
        return found
    if not MOVES.isdisjoint((own, plain)):
        return Category.COPY
    if _REDUCTION.match(own):
        return Category.REDUCTION
    if own.startswith("masked_"):
        return Category.ELEMENTWISE
    if name.startswith("aten::"):
        return _by_rules(own, Category.ELEMENTWISE)
    return _by_rules(name, Category.OTHER)


def _by_rules(name: str, otherwise: Category) -> Category:
    """The category that a kernel of this name would have."""
    return next((rule.category for rule in RULES if rule.pattern.search(name)), otherwise)


_Patterns = tuple[tuple[Category, re.Pattern[str]], ...]
_PRODUCTS: _Patterns = (
    (Category.ATTENTION, re.compile(r"attention")),
    (Category.CONVOLUTION, re.compile(r"^_?conv(?:olution|_|\dd)")),
    (Category.MATMUL, re.compile(r"^(?:\w*_)?(?:add|badd)?(?:b?mm|mv)(?:_|$)|matmul|linear$")),
)
_PLAIN_PRODUCT = re.compile(r"^(?:\w*_)?(?:b?mm|mv)$|matmul$|attention")
"""Products without a sum, which may be left to a pointwise kernel."""
_SHAPING: _Patterns = (
    # Before softmax: Inductor names a cross entropy's passes by both.
    (Category.LOSS, re.compile(r"nll_loss|cross_entropy|(?:mse|l1|huber|ctc)_loss|kl_div")),
    (Category.SOFTMAX, re.compile(r"softmax|logsumexp")),
    (Category.NORMALISATION, re.compile(r"(?:layer|rms|batch|group|instance|weight)_norm")),
    (
        Category.EMBEDDING,
        re.compile(r"embedding|^index_(?:select|put|add|copy)|gather$|scatter|_index_put"),
    ),
    (Category.OPTIMIZER, re.compile(r"^_fused_(?:adam|sgd|adagrad)")),
    (
        Category.SORT,
        re.compile(r"^(?:arg|m)?sort$|^topk$|^multinomial$|^searchsorted$|^bucketize$"),
    ),
)
_MOVE_NAMES = """
    _to_copy _unsafe_index _unsafe_view alias as_strided as_strided_scatter cat chunk clone concat
    constant_pad_nd contiguous convert_element_type copy copy_ detach diagonal empty empty_like
    empty_strided expand expand_as fill flatten flip full full_like index lift_fresh_copy movedim
    narrow new_empty new_full new_ones new_zeros ones ones_like pad permute repeat reshape roll
    scalar_tensor select select_backward select_scatter slice slice_backward slice_scatter split
    split_with_sizes split_with_sizes_copy squeeze stack t tile to transpose type_as unbind unflatten
    unfold unsafe_split unsqueeze view zero zeros zeros_like
"""
MOVES = frozenset(_MOVE_NAMES.split())
"""Operators that compute nothing."""
Kind = Literal["poi", "red", "per", "spl", "tem", "for", "unk"]
"""Pointwise, reduction, persistent reduction, split scan, template, foreach, unknown."""


class Fused(NamedTuple):
    """A kernel that Inductor generated."""

    kind: Kind
    ops: tuple[str, ...]
    """The fused operators. Words that no known operator accounts for stay together as one piece."""


def fused_category(kernel: Fused) -> Category:
    """The category of a fused kernel; OTHER where its name has neither operators nor a kind."""
    products = {op for op in kernel.ops if _first(_PRODUCTS, (op,))}
    others = tuple(op for op in kernel.ops if op not in products)
    reduces = kernel.kind in ("red", "per", "spl")
    if products and (kernel.kind == "tem" or (reduces and MOVES.issuperset(others))):
        return _first(_PRODUCTS, kernel.ops) or Category.MATMUL
    if found := _first(_SHAPING, _with_norms(others)):
        return found
    if kernel.kind == "tem":
        return Category.MATMUL
    if reduces:
        return Category.REDUCTION
    if kernel.kind == "unk" and not kernel.ops:
        return Category.OTHER
    # These are the remains of an operand or result: Inductor pads both, and names the product.
    moves = kernel.ops and all(op in MOVES or _PLAIN_PRODUCT.search(op) for op in kernel.ops)
    return Category.COPY if moves else Category.ELEMENTWISE


def shaping(ops: tuple[str, ...]) -> Category | None:
    """The category of the most important of these operators, which are named without a namespace. None where
    all of them move data or do arithmetic."""
    return _first((*_PRODUCTS, *_SHAPING), _with_norms(ops))


def _with_norms(ops: tuple[str, ...]) -> tuple[str, ...]:
    """The operators, with a norm that was written out replaced by the norm's operator."""
    written_out = "rsqrt" in ops and not {"mean", "pow", "var", "var_mean"}.isdisjoint(ops)
    return (*ops, "rms_norm") if written_out else ops


def _first(patterns: _Patterns, ops: tuple[str, ...]) -> Category | None:
    for category, pattern in patterns:
        if any(pattern.search(op) for op in ops):
            return category
    return None


_FUSED = re.compile(rf"triton_({'|'.join(get_args(Kind))})_fused(?:_(\w*))?")
_NUMBER = re.compile(r"\d+")
# Triton before 3.0 ended names with the arguments it specialised on: `_0d1d2de`.
_SPECIALISED = re.compile(r"\d[\dcde]+")


@cache
def operators() -> frozenset[str]:
    """The operator names that Inductor joins, as far as they are known."""
    text = files("peakward.traces").joinpath("operators.txt").read_text(encoding="utf-8")
    return frozenset(
        word for line in text.splitlines() if not line.startswith("#") for word in line.split()
    )


def fused(name: str) -> Fused | None:
    """The parts of an Inductor kernel's name; None for any other name."""
    if (found := _FUSED.search(name)) is None:
        return None
    return Fused(cast(Kind, found[1]), tuple(_pieces(_words(found[2] or ""))))


def fused_ops(name: str) -> tuple[str, ...]:
    """The operators that an Inductor kernel fuses; none for any other kernel."""
    return kernel.ops if (kernel := fused(name)) else ()


def _words(text: str) -> list[str]:
    """The words of a name, without the number at its end."""
    words = text.split("_") if text else []
    if len(words) > 1 and _NUMBER.fullmatch(words[-2]) and _SPECIALISED.fullmatch(words[-1]):
        words.pop()
    if words and _NUMBER.fullmatch(words[-1]):
        words.pop()
    return words


def _pieces(words: list[str]) -> Iterator[str]:
    """The longest operator from each word on. Operators are sorted, so a word that would step back belongs to
    an unknown name."""
    start, known_until, last = 0, 0, ""
    while start < len(words):
        op = _longest(words, start)
        if op is None or op <= last:
            start += 1
            continue
        if known_until < start:
            yield "_".join(words[known_until:start])
        yield op
        start += op.count("_") + 1
        known_until, last = start, op
    if known_until < start:
        yield "_".join(words[known_until:])


def _longest(words: list[str], start: int) -> str | None:
    for end in range(min(len(words), start + _most_words()), start, -1):
        if (candidate := "_".join(words[start:end])) in operators():
            return candidate
    return None


@cache
def _most_words() -> int:
    return max(op.count("_") + 1 for op in operators())
