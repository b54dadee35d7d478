"""A warpgroup's softmax: masks, the online exponentials, and weights as they wait for their product."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

PACK_BFLOAT16 = gl.constexpr("cvt.rn.bf16x2.f32 $0, $2, $1;")
PACK_FLOAT16 = gl.constexpr("cvt.rn.f16x2.f32 $0, $2, $1;")
UNPACK = gl.constexpr("mov.b32 {$0, $1}, $2;")


@gluon.jit
def masked(  # type: ignore[no-untyped-def]
    scores,
    first_row,
    first_key,
    q_len,
    k_len,
    sizes,
    LAYOUT: gl.constexpr,
):
    """Minus infinity where a row must not see a key, or there is none: one comparison a score."""
    key = gl.arange(0, sizes.keys, layout=gl.SliceLayout(0, LAYOUT))
    end = gl.full([sizes.rows], k_len, gl.int32, layout=gl.SliceLayout(1, LAYOUT))
    if sizes.causal:
        row = first_row + gl.arange(0, sizes.rows, layout=gl.SliceLayout(1, LAYOUT))
        end = gl.minimum(end, row + (1 + k_len - q_len))
    return gl.where(key[None, :] < (end - first_key)[:, None], scores, float("-inf"))


@gluon.jit
def exponentials(scores, maximum, total, scale, MASKED: gl.constexpr):  # type: ignore[no-untyped-def]
    """The online softmax, in base 2: new maxima, exponentials, sums, and what earlier ones shrink by."""
    maximum_now = gl.maximum(maximum, gl.max(scores, 1) * scale)
    if MASKED:
        # A row that has seen no key yet: infinity minus infinity would be no number.
        safe = gl.where(maximum_now == float("-inf"), 0.0, maximum_now)
    else:
        safe = maximum_now
    shrink = gl.exp2(maximum - safe)
    weights = gl.exp2(scores * scale - safe[:, None])
    total = total * shrink + gl.sum(weights, 1)
    return maximum_now, weights, total, shrink


@gluon.jit
def packed(weights, dtype: gl.constexpr):  # type: ignore[no-untyped-def]
    """Rounded to `dtype`, two neighbours to a register.

    What a loop carries in 16 bits takes a register each, to be put together before every product and
    taken apart after it: 64 instructions a tile beside 416, and 6% of the time of 4,096 causal keys
    with head dimension 64.
    """
    even, odd = gl.split(weights.reshape([weights.shape[0], weights.shape[1] // 2, 2]))
    PACK: gl.constexpr = PACK_BFLOAT16 if dtype == gl.bfloat16 else PACK_FLOAT16
    return gl.inline_asm_elementwise(
        PACK, "=r,r,r", [even, odd], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def unpacked(pairs, dtype: gl.constexpr, LAYOUT: gl.constexpr):  # type: ignore[no-untyped-def]
    """One by one, in a layout that has the same values in the same threads."""
    even, odd = gl.inline_asm_elementwise(
        UNPACK, "=h,=h,r", [pairs], dtype=(gl.int16, gl.int16), is_pure=True, pack=1
    )
    both = gl.join(even, odd).reshape([pairs.shape[0], pairs.shape[1] * 2])
    return gl.convert_layout(both.to(dtype, bitcast=True), LAYOUT, assert_trivial=True)
