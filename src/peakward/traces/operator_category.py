"""The category of a framework operator by its name, for traces without a GPU."""

import re

from peakward.traces.category_rules import RULES, Category
from peakward.traces.fused_category import MOVES, shaping

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
