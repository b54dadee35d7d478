"""Tells how an operator's operands lie in memory, and what its settings say that shapes do not."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch._ops import OpOverload


def scattered(operands: Iterable[Tensor]) -> bool:
    """Whether operands of more than one element differ in shape or strides, or leave gaps."""
    large = [each for each in operands if each.numel() > 1]
    kinds = {(tuple(each.shape), tuple(each.stride())) for each in large}
    return len(kinds) > 1 or not all(map(_is_dense, large))


def is_causal(operator: OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether fused attention is causal; true for operators without such an argument."""
    names = [each.name for each in operator._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    said = next((each for each in ("is_causal", "causal") if each in names), None)
    return True if said is None else bool(given.get(said, False))


def _is_dense(tensor: Tensor) -> bool:
    """Whether every address between the first element and the last belongs to exactly one element."""
    expected = 1
    extents = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted((stride, size) for stride, size in extents if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True
