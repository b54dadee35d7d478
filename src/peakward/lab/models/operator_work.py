"""The FLOPs of a dispatched operator and the bytes that it reads and writes, from its arguments and results.

Each multiply-add of a matrix product counts as two, and all else as nothing, as in torch's
FlopCounterMode. Its registry leaves out torch's fused attention on a CPU and grouped products, and
before torch 2.12 refuses heads that share keys and values. A mask does not reduce the count here.

The rule for bytes is in `records.op_graph.Operator`. An operator's schema says which arguments it changes,
but not which ones it never reads. The few operators that do not read all arguments have rules here.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from peakward.records.op_graph import Operand

Shapes = list[tuple[int, ...]]


def flops(name: str, tensors: list[Tensor]) -> int:
    """The FLOPs of the operator of this name ("aten.mm") on its tensor arguments, given in order."""
    formula = _FORMULAS.get(name)
    return 0 if formula is None else formula([tuple(each.shape) for each in tensors])


def _product(first: int) -> Callable[[Shapes], int]:
    """The FLOPs of [..., m, k] at `first` times [..., k, n] after it."""

    def formula(shapes: Shapes) -> int:
        return 2 * math.prod(shapes[first]) * shapes[first + 1][-1]

    return formula


def _grouped_product(shapes: Shapes) -> int:
    """The FLOPs of (…, m, k) times (…, k, n), where either or both may have no dimension of groups. The
    groups are then cut from the rows of the first, the columns of the second, or k of both, and each
    element is in one group. Without such a cut every group multiplies whole matrices."""
    a, b = shapes[:2]
    whole = len(a) == len(b) == 3
    return 2 * (a[0] if whole else 1) * a[-2] * a[-1] * b[-1]


def _attention(query: int, n_key_products: int, n_value_products: int) -> Callable[[Shapes], int]:
    """The FLOPs of attention: query [batch, heads, s, d] at `query`, then key [.., t, d] and value [..,
    t, dv]; `n_key_products` as large as the scores' (along d), and `n_value_products` as large as the
    weighted values' (along dv)."""

    def formula(shapes: Shapes) -> int:
        batch, heads, n_queries, size = shapes[query]
        n_keys, value_size = shapes[query + 2][2:]
        width = n_key_products * size + n_value_products * value_size
        return 2 * batch * heads * n_queries * n_keys * width

    return formula


def _attention_to_cache(shapes: Shapes) -> int:
    """The FLOPs of decode attention. Elements of half a byte leave a key narrower than the query, and a table
    (batch, max_pages) says that keys are in pages (n_pages, page_size, kv_heads, ..)."""
    batch, heads, n_queries, size = shapes[0]
    tables = [each for each in shapes[3:] if len(each) == 2]
    n_keys = tables[0][1] * shapes[1][1] if tables else shapes[1][2]
    return 2 * batch * heads * n_queries * n_keys * 2 * size


def _own_attention_backward(shapes: Shapes) -> int:
    """The FLOPs of our attention's backward pass; the gradient of the log-sum-exp, if any, comes before
    the query."""
    query = next(i for i, shape in enumerate(shapes) if i and len(shape) == 4)
    return _attention(query, 3, 2)(shapes)


def _linear_cross_entropy(n_products: int) -> Callable[[Shapes], int]:
    """The FLOPs of `n_products` products of (tokens, d) and (vocab, d), or as large ones."""

    def formula(shapes: Shapes) -> int:
        (n_tokens, width), (vocab, _) = shapes[:2]
        return n_products * 2 * n_tokens * width * vocab

    return formula


def _slope_product(shapes: Shapes) -> int:
    """The FLOPs of (tokens, d) with the gradient of the logits, which is the third argument."""
    (n_tokens, width), _, (_, columns) = shapes[:3]
    return 2 * n_tokens * width * columns


def _quantised_product(shapes: Shapes) -> int:
    """The FLOPs of (…, k) with n outputs; the scales are (groups, n)."""
    x, _, scale = shapes[:3]
    return 2 * math.prod(x) * scale[-1]


_FUSED = (
    "flash_attention_for_cpu",
    "flash_attention",
    "efficient_attention",
    "cudnn_attention",
)
_FORMULAS: dict[str, Callable[[Shapes], int]] = {
    "aten.mm": _product(0),
    "aten.bmm": _product(0),
    "aten._scaled_mm": _product(0),
    "aten._grouped_mm": _grouped_product,
    "aten.addmm": _product(1),
    "aten.baddbmm": _product(1),
    **{f"aten._scaled_dot_product_{kind}": _attention(0, 1, 1) for kind in _FUSED},
    # Five products: the scores again, and the gradients of the query, the key, the weights and the value.
    **{f"aten._scaled_dot_product_{kind}_backward": _attention(1, 3, 2) for kind in _FUSED},
    "peakward.decode_attention": _attention_to_cache,
    "peakward.flash_attention": _attention(0, 1, 1),
    "peakward.flash_attention_backward": _own_attention_backward,
    "peakward.int4_matmul": _quantised_product,
    "peakward.int8_matmul": _quantised_product,
    "peakward.linear_cross_entropy_chunked": _linear_cross_entropy(3),
    "peakward.linear_cross_entropy_whole": _linear_cross_entropy(2),
    "peakward.linear_cross_entropy_whole_backward": _slope_product,
    "peakward.linear_cross_entropy_recomputed": _linear_cross_entropy(1),
    "peakward.linear_cross_entropy_recomputed_backward": _linear_cross_entropy(3),
}
_ARITHMETIC = frozenset(
    {
        *(str(each) for each in flop_registry),
        *(
            "aten._scaled_grouped_mm",
            "aten._int_mm",
            "aten._weight_int8pack_mm",
        ),
        *("aten.mkldnn_rnn_layer", "aten._thnn_fused_lstm_cell", "aten._thnn_fused_gru_cell"),
        *("aten._trilinear", "aten.linear", "aten.mv", "aten.dot", "aten.addmv", "aten.addbmm"),
    }
)
"""All operators of matrix products and convolutions: those that torch counts, and those that it omits."""


def is_uncounted(name: str) -> bool:
    """Whether the operator is known to compute an unknown amount."""
    return name in _ARITHMETIC and name not in _FORMULAS


def scratch(name: str, given: list[Tensor], results: list[Tensor]) -> tuple[int, ...]:
    """The bytes of each tensor that the operator of this name makes on CUDA for the meantime."""
    if name == "aten._safe_softmax":
        # Which of the scores are minus infinity, and in which rows all of them are.
        (weights,) = results
        return weights.numel(), math.prod(weights.shape[:-1])
    if name == "aten._softmax_backward_data":
        return (given[0].nbytes,)  # The gradient times the result (`softmax_backward_cuda_out`).
    return ()


def tensors(tree: object) -> list[Tensor]:
    """The tensors of arguments or results, in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def operands(values: Iterable[object]) -> tuple[Operand, ...]:
    """The operands of arguments or results, in order; equal ones in a list are counted together."""
    return tuple(
        Operand(shape=shape, dtype=dtype, count=count)
        for value in values
        for (shape, dtype), count in Counter(map(_kind, tensors(value))).items()
    )


def _kind(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def written_arguments(operator: OpOverload, args: Any, kwargs: Any) -> list[object]:
    """The arguments that the operator changes, by its schema; lists of tensors as they are."""
    given = {
        each.name: value for each, value in zip(operator._schema.arguments, args, strict=False)
    }
    given.update(kwargs)
    left = _LEFT_ALONE.get(str(operator.overloadpacket), ())
    return [
        given[each.name]
        for each in operator._schema.arguments
        if each.alias_info is not None and each.alias_info.is_write
        if each.name in given and each.name not in left
    ]


def apart_from_out(
    operator: OpOverload, kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Tensor]]:
    """The named arguments without those of `out=`, which the operator writes and does not read; and these."""
    out = {each.name for each in operator._schema.arguments if each.is_out}
    read = {name: value for name, value in kwargs.items() if name not in out}
    return read, tensors([kwargs[name] for name in kwargs if name in out])


def fresh(results: Iterable[object], given: Iterable[Tensor]) -> list[object]:
    """The results, tensors or lists of them, that share no memory with what was given."""
    known = {each.untyped_storage()._cdata for each in given}
    return [
        each
        for each in results
        if (made := tensors(each)) and made[0].untyped_storage()._cdata not in known
    ]


def bytes_read(name: str, given: list[Tensor]) -> int:
    """The bytes that the operator of this name ("aten.mm") reads of its tensor arguments, given in
    order."""
    return _READ.get(name, stored_bytes)(given)


def bytes_written(name: str, given: list[Tensor], results: Iterable[Tensor]) -> int:
    """The bytes that it writes of the arguments that it changes and of its new results."""
    return _WRITTEN[name](given) if name in _WRITTEN else stored_bytes(results)


def stored_bytes(given: Iterable[Tensor]) -> int:
    """The bytes of the elements in memory; tensors that are wholly the same memory count once."""
    distinct = {_place(each): each for each in given}
    return sum(
        math.prod(size for size, _ in extents) * each.element_size()
        for (_, _, extents), each in distinct.items()
    )


def _place(tensor: Tensor) -> tuple[int, int, tuple[tuple[int, int], ...]]:
    """The storage, the first element, and sizes with their strides: equal for a tensor and its
    transpose."""
    along = zip(tensor.shape, tensor.stride(), strict=True)
    extents = sorted((size, stride) for size, stride in along if size != 1 and stride != 0)
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset()), tuple(extents)


def _nothing(_given: list[Tensor]) -> int:
    """0: only the argument's shape and type are used."""
    return 0


def _all_but(position: int) -> Callable[[list[Tensor]], int]:
    """A rule for operators that read nothing of the argument at `position`."""

    def rule(given: list[Tensor]) -> int:
        return stored_bytes(given[:position] + given[position + 1 :])

    return rule


def _rows(given: list[Tensor]) -> int:
    """The bytes of the indices and of a table row for each; a row in the cache counts too."""
    table, indices = given
    return stored_bytes([indices]) + indices.numel() * table.shape[1] * table.element_size()


def _product_reads(given: list[Tensor]) -> int:
    """The bytes of all arguments; 0 where one of the matrices has no elements."""
    return stored_bytes(given) if all(each.numel() for each in given) else 0


def _grouped_product_reads(given: list[Tensor]) -> int:
    """The bytes of the rows and of the groups' matrices, of at most as many groups as there are rows:
    other groups are empty."""
    rows, matrices, *ends = given
    if rows.dim() != 2 or matrices.dim() != 3:
        return stored_bytes(given)
    n_groups = len(matrices)
    needed = stored_bytes([matrices]) * min(len(rows), n_groups) // n_groups
    return stored_bytes([rows, *ends]) + needed


def _targets(given: list[Tensor]) -> int:
    """The bytes of the targets, and of the element that each target names in its row."""
    log_probabilities, targets = given
    return stored_bytes([targets]) + targets.numel() * log_probabilities.element_size()


def _n_held(given: list[Tensor]) -> int:
    """Keys, values and, where they are kept in fewer bits, the scales of both. Behind these come new keys and
    values, slots and perhaps a table."""
    return 4 if len(given) > 6 else 2


def _new_to_cache(given: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The keys that `peakward.cache_write` writes to, the slots, and the new keys and values."""
    n_held = _n_held(given)
    return given[0], given[n_held + 2], given[n_held : n_held + 2]


def _cache_reads(given: list[Tensor]) -> int:
    """The bytes of new keys and values and of their slots; the cache is written alone."""
    _, slots, new = _new_to_cache(given)
    return stored_bytes([*new, slots])


def _cache_writes(given: list[Tensor]) -> int:
    """The bytes of new keys and values as they are stored, and of their scales where there are some."""
    held, _, new = _new_to_cache(given)
    of_a_head = held.shape[-1] * held.element_size()
    if _n_held(given) > 2:
        scale = given[2]
        of_a_head += scale.numel() * scale.element_size() * held.shape[-1] // held.numel()
    return of_a_head * sum(each.numel() // each.shape[-1] for each in new)


_READ: dict[str, Callable[[list[Tensor]], int]] = {
    "aten.mm": _product_reads,
    "aten._grouped_mm": _grouped_product_reads,
    "aten.embedding": _rows,
    "aten.nll_loss_forward": _targets,
    "aten.nll_loss_backward": _all_but(1),
    "aten.copy_": _all_but(0),
    "aten.fill_": _nothing,
    "aten.zero_": _nothing,
    "aten.ones_like": _nothing,
    "aten.zeros_like": _nothing,
    "aten.full_like": _nothing,
    "aten.new_zeros": _nothing,
    "aten.new_full": _nothing,
    "peakward.cache_write": _cache_reads,
}
_WRITTEN: dict[str, Callable[[list[Tensor]], int]] = {"peakward.cache_write": _cache_writes}
_LEFT_ALONE = {"aten._fused_adamw_": ("grads",)}
"""The arguments that the schema lists as changed, but that change only under a loss scale."""
ALLOCATIONS = frozenset(
    {
        "aten.empty",
        "aten.empty_like",
        "aten.empty_strided",
        "aten.new_empty",
        "aten.new_empty_strided",
        "aten.lift_fresh",
    }
)
"""The operators whose results are new, but are not written to."""
