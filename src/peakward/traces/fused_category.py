"""The category of a kernel that Inductor fused, by its operators.

The operator that shapes the kernel decides: a kernel that normalises is a normalisation, whatever else it
adds and casts. That order is the order here. A kernel's name also has operators whose results it only reads,
casts or pads: a pointwise kernel names a reduction (`mean`), and both name a product that another kernel
computed (`_scaled_mm`). So the kind tells which kernels reduce, and only a template holds a product, a
convolution or attention, or a reduction whose name has nothing else that could have summed.
"""

import re

from peakward.traces.category_rules import Category
from peakward.traces.inductor import Fused

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
