"""Counts the bytes that a dispatched operator reads and writes, from its arguments and results.

The rule is in `records.op_graph.Operator`. An operator's schema says which arguments it changes, but
not which ones it never reads. The few operators that do not read all arguments have rules here.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from peakward.records.op_graph import Operand


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


def _product(given: list[Tensor]) -> int:
    """The bytes of all arguments; 0 where one of the matrices has no elements."""
    return stored_bytes(given) if all(each.numel() for each in given) else 0


def _grouped_product(given: list[Tensor]) -> int:
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


_READ: dict[str, Callable[[list[Tensor]], int]] = {
    "aten.mm": _product,
    "aten._grouped_mm": _grouped_product,
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
}
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
