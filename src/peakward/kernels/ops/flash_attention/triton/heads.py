"""Rows of a head in registers, in two parts whose widths are powers of two: 80 as D1 = 64 and D2 = 16.

Where D2 is 0 there is no second part, and the number 0.0 stands in its place: Triton 3.6 has no functions
of None.
"""

import triton
import triton.language as tl


@triton.jit
def head_of(source, batch, head, first, strides, DESCRIPTORS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A head's first row; a descriptor as it is."""
    if DESCRIPTORS:
        return source
    else:
        return (
            source
            + batch.to(tl.int64) * strides[0]
            + head.to(tl.int64) * strides[1]
            + tl.cast(first, tl.int64) * strides[2]
        )


@triton.jit
def heads_of(  # type: ignore[no-untyped-def]
    source1, source2, batch, head, first, strides, DESCRIPTORS: tl.constexpr
):
    """`head_of` of both parts."""
    return (
        head_of(source1, batch, head, first, strides, DESCRIPTORS),
        head_of(source2, batch, head, first, strides, DESCRIPTORS),
    )


@triton.jit
def load(  # type: ignore[no-untyped-def]
    source,
    batch,
    head,
    start,
    length,
    row_stride,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    VALID: tl.constexpr,
    CHECK_ROWS: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """(ROWS, WIDTH) of a head from row `start`: 0 from row `length` and column VALID on.

    `source` is what `head_of` gave. Without CHECK_ROWS, rows are taken to be there.
    """
    if DESCRIPTORS:
        return source.load([batch, head, start, 0]).reshape(ROWS, WIDTH)
    else:
        row = tl.arange(0, ROWS)
        column = tl.arange(0, WIDTH)
        offset = row[:, None] * row_stride + column[None, :]
        source += tl.cast(start, tl.int64) * row_stride
        if CHECK_ROWS and VALID < WIDTH:
            inside = (start + row < length)[:, None] & (column < VALID)[None, :]
            return tl.load(source + offset, mask=inside, other=0.0)
        elif CHECK_ROWS:
            return tl.load(source + offset, mask=(start + row < length)[:, None], other=0.0)
        elif VALID < WIDTH:
            return tl.load(source + offset, mask=(column < VALID)[None, :], other=0.0)
        else:
            return tl.load(source + offset)


@triton.jit
def load_parts(  # type: ignore[no-untyped-def]
    sources,
    at,
    start,
    length,
    row_stride,
    ROWS: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CHECK_ROWS: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """ROWS rows of a head from row `start`, (ROWS, D1) and (ROWS, D2), as `load` gives them.

    `sources` is what `heads_of` gave, `at` (batch, head).
    """
    batch, head = at
    first = load(
        sources[0], batch, head, start, length, row_stride, ROWS, D1, D1, CHECK_ROWS, DESCRIPTORS
    )
    if D2 > 0:
        second = load(
            sources[1], batch, head, start, length, row_stride, ROWS, D2, HEAD_DIM - D1,
            CHECK_ROWS, DESCRIPTORS,
        )  # fmt: skip
    else:
        second = 0.0
    return first, second


@triton.jit
def zero_parts(ROWS: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums of fp32, (ROWS, D1) and (ROWS, D2)."""
    if D2 > 0:
        second = tl.zeros([ROWS, D2], tl.float32)
    else:
        second = 0.0
    return tl.zeros([ROWS, D1], tl.float32), second


@triton.jit
def times(parts, factor, D2: tl.constexpr):  # type: ignore[no-untyped-def]
    """Both parts times a number or a column (ROWS, 1)."""
    if D2 > 0:
        second = parts[1] * factor
    else:
        second = 0.0
    return parts[0] * factor, second


@triton.jit
def inner(left, right, D2: tl.constexpr, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """left rightᵀ over the whole head, (rows of left, rows of right) of fp32."""
    product = tl.dot(left[0], right[0].T, input_precision=PRECISION)
    if D2 > 0:
        product = tl.dot(left[1], right[1].T, product, input_precision=PRECISION)
    return product


@triton.jit
def plus_weighted(sums, weight, rows, D2: tl.constexpr, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """`sums` + weight rows, part by part: weight (ROWS of sums, ROWS of rows)."""
    first = tl.dot(weight, rows[0], sums[0], input_precision=PRECISION)
    if D2 > 0:
        second = tl.dot(weight, rows[1], sums[1], input_precision=PRECISION)
    else:
        second = 0.0
    return first, second


@triton.jit
def store(  # type: ignore[no-untyped-def]
    target,
    value,
    start,
    length,
    row_stride,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    VALID: tl.constexpr,
):
    """The rows before `length` and the columns before VALID, in the target's type."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    target += tl.cast(start, tl.int64) * row_stride
    inside = (start + row < length)[:, None] & (column < VALID)[None, :]
    offset = row[:, None] * row_stride + column[None, :]
    tl.store(target + offset, value.to(target.dtype.element_ty), mask=inside)


@triton.jit
def store_parts(  # type: ignore[no-untyped-def]
    targets,
    parts,
    start,
    length,
    row_stride,
    ROWS: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """`store` of both parts to what `heads_of` gave."""
    store(targets[0], parts[0], start, length, row_stride, ROWS, D1, D1)
    if D2 > 0:
        store(targets[1], parts[1], start, length, row_stride, ROWS, D2, HEAD_DIM - D1)
