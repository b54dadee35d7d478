"""Where a reshape has to copy: torch gives a view whenever the strides allow one."""

import math

Strides = tuple[int, ...]
"""Elements from one index to the next, along each dimension."""


def dense(shape: tuple[int, ...]) -> Strides:
    """Strides of a row-major tensor."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def swapped(values: tuple[int, ...], i: int, j: int) -> tuple[int, ...]:
    """A shape or strides with two dimensions swapped."""
    changed = list(values)
    changed[i], changed[j] = changed[j], changed[i]
    return tuple(changed)


def by_rows(shape: tuple[int, ...]) -> Strides:
    """Strides of (batch, heads, seq, size) that lies in memory as (batch, seq, heads, size)."""
    return swapped(dense(swapped(shape, 1, 2)), 1, 2)


def is_view(shape: tuple[int, ...], strides: Strides, target: tuple[int, ...]) -> bool:
    """Whether a tensor can be seen as `target` without a copy.

    Runs of dimensions that lie behind one another in memory count as one; each must be the
    product of a run of the target's (`computeStride` of ATen's TensorUtils.cpp).
    """
    sizes = [size for size in target if size != 1]
    runs: list[int] = []
    inner = None
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if inner is not None and stride == inner:
            runs[-1] *= size
        else:
            runs.append(size)
        inner = stride * size
    for run in runs:
        filled = 1
        while sizes and filled < run:
            filled *= sizes.pop()
        if filled != run:
            return False
    return not sizes
