"""The choice of the likeliest token within a step, and the step's own book of its texts.

The kernel of the output layer keeps the largest logit of each program with its token, in one whole number,
and stores no logits. One small kernel takes the largest of these and hands the token on, so that no operator
of torch stands between two steps.
"""

import triton
import triton.language as tl

from peakward.kernels.ops.dependent import wait_for_the_one_before

LEAST = tl.constexpr(-(2**63))
"""Below the key of every logit."""
LAST = tl.constexpr(0x7FFFFFFF)


@triton.jit
def key_of(logit, token):  # type: ignore[no-untyped-def]
    """A logit in fp32 and its token in int64: the largest key is of the largest logit, and among equal ones
    of the lowest token. NaN is above all, and both zeros are equal, as torch.argmax has it."""
    bits = tl.where(logit == 0.0, 0.0, logit).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & LAST)
    ordered = tl.where(logit == logit, ordered, LAST)  # noqa: PLR0124 (NaN)
    return (ordered.to(tl.int64) << 32) | (token ^ LAST).to(tl.int64)


@triton.jit
def decode_step_chosen(  # type: ignore[no-untyped-def]
    keys_ptr,
    ids_ptr,
    held_ptr,
    out_ptr,
    made_ptr,
    most_ptr,
    ended_ptr,
    ends_ptr,
    n_keys,
    out_row,
    n_ends,
    KEYS: tl.constexpr,
    ENDS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """The token of one row: into ids, and into out behind what the row has made. Unless the row had ended, it
    holds and has made one more, and ends with its last token or with one of `ends`."""
    wait_for_the_one_before(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    each = tl.arange(0, KEYS)
    keys = tl.load(
        keys_ptr + row * n_keys + each, mask=each < n_keys, other=LEAST, cache_modifier=".cg"
    )
    token = (tl.max(keys, 0) & LAST) ^ LAST
    made = tl.load(made_ptr + row)
    had_ended = tl.load(ended_ptr + row).to(tl.int64)
    tl.store(out_ptr + row * out_row + made, token)
    tl.store(ids_ptr + row, token)
    tl.store(held_ptr + row, tl.load(held_ptr + row) + 1 - had_ended)
    made += 1 - had_ended
    tl.store(made_ptr + row, made)
    end = tl.arange(0, ENDS)
    known = tl.load(ends_ptr + end, mask=end < n_ends, other=-1)
    is_end = tl.max((known == token).to(tl.int32), 0)
    is_full = (made >= tl.load(most_ptr + row)).to(tl.int32)
    tl.store(ended_ptr + row, ((had_ended.to(tl.int32) | is_end | is_full) != 0))
