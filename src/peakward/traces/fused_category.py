"""The category of a kernel that Inductor fused, from the operators it fuses.

A fused kernel is of the category of what shapes it: one that normalises is a normalisation whatever
it adds and casts besides. That order is the order here. A pointwise kernel that follows a reduction
names operators of it (`mean`), so the kind and not the operators tells which kernels reduce.
"""

import re

from peakward.traces.category_rules import Category
from peakward.traces.inductor import Fused

_SHAPING = (
    (Category.ATTENTION, re.compile(r"attention")),
    (Category.CONVOLUTION, re.compile(r"^_?conv(?:olution|_|\dd)")),
    (Category.MATMUL, re.compile(r"^(?:\w*_)?(?:add|badd)?(?:b?mm|mv)(?:_|$)|matmul|linear$")),
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
    """What shapes the kernel; OTHER where its name has neither operators nor a kind."""
    if found := shaping(kernel.ops):
        return found
    match kernel.kind:
        case "tem":
            return Category.MATMUL
        case "red" | "per" | "spl":
            return Category.REDUCTION
        case "unk" if not kernel.ops:
            return Category.OTHER
        case _:
            moves = kernel.ops and MOVES.issuperset(kernel.ops)
            return Category.COPY if moves else Category.ELEMENTWISE


def shaping(ops: tuple[str, ...]) -> Category | None:
    """The category of the one among these operators, named without a namespace, that counts most;
    None where all of them move data or do arithmetic.
    """
    # A norm that was written out counts as the operator.
    written_out = "rsqrt" in ops and not {"mean", "pow", "var", "var_mean"}.isdisjoint(ops)
    named = (*ops, "rms_norm") if written_out else ops
    for category, pattern in _SHAPING:
        if any(pattern.search(op) for op in named):
            return category
    return None
