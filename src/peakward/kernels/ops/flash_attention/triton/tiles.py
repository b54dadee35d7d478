"""Where a program works, and which keys a query sees."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def place(n_blocks, n_heads, n_batches, section):  # type: ignore[no-untyped-def]
    """(block, batch, head) of this program: the blocks of `section` heads at a time, block by block.

    Heads of one section run side by side, so that their keys and values stay in L2.
    """
    program = tl.program_id(0)
    first = program // (section * n_blocks) * section
    width = tl.minimum(section, n_heads * n_batches - first)
    within = program - first * n_blocks
    head = first + within % width
    return within // width, head // n_heads, head % n_heads


@triton.jit
def span(cumulative, batch, length, VARLEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """(first token, tokens) of a sequence."""
    if VARLEN:
        first = tl.load(cumulative + batch)
        return first, tl.load(cumulative + batch + 1) - first
    else:
        return 0, length


@triton.jit
def sees(  # type: ignore[no-untyped-def]
    distance, key, k_len, CAUSAL: tl.constexpr, WINDOW: tl.constexpr
):
    """Where a query attends to a key `distance` before it; broadcasts."""
    allowed = key < k_len
    if CAUSAL:
        allowed &= distance >= 0
    if WINDOW is not None:
        allowed &= distance < WINDOW
    return allowed


@triton.jit
def multiple_below(value, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The largest multiple of BLOCK that is at most `value`, no less than 0."""
    return tl.maximum(value, 0) // BLOCK * BLOCK


@triton.jit
def multiple_above(value, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The least multiple of BLOCK that is at least `value`, no less than 0."""
    return tl.cdiv(tl.maximum(value, 0), BLOCK) * BLOCK


@triton.jit
def keys_of(  # type: ignore[no-untyped-def]
    start,
    k_len,
    shift,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Where blocks of keys begin and end for QUERIES queries from `start`: (first, full, partial, end).

    Keys from `full` to `partial` are seen by all of them. The first query is at the key `start + shift`.
    """
    first = 0
    full = 0
    partial = k_len // KEYS * KEYS
    end = k_len
    if CAUSAL:
        end = tl.minimum(k_len, tl.maximum(start + QUERIES + shift, 0))
        partial = tl.minimum(partial, multiple_below(start + shift + 1, KEYS))
    if WINDOW is not None:
        first = multiple_below(start + shift - WINDOW + 1, KEYS)
        full = multiple_above(start + QUERIES + shift - WINDOW, KEYS)
    full = tl.minimum(full, multiple_above(end, KEYS))
    return first, full, tl.maximum(partial, full), end


@triton.jit
def queries_of(  # type: ignore[no-untyped-def]
    start,
    q_len,
    k_len,
    shift,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """As `keys_of`, of the queries that see KEYS keys from `start`: (first, full, partial, end).

    Where keys end within the block, none is `full`.
    """
    first = 0
    full = 0
    end = q_len
    partial = q_len // QUERIES * QUERIES
    if CAUSAL:
        first = multiple_below(start - shift, QUERIES)
        full = multiple_above(start + KEYS - 1 - shift, QUERIES)
    if WINDOW is not None:
        end = tl.minimum(q_len, tl.maximum(start + KEYS - 1 + WINDOW - shift, 0))
        partial = tl.minimum(partial, multiple_below(WINDOW + start - shift, QUERIES))
    last = multiple_above(end, QUERIES)
    full = tl.where(start + KEYS > k_len, last, tl.minimum(full, last))
    return first, full, tl.maximum(partial, full), end
