"""One row of activations, held in registers for all rows of a matrix, and its sum with a tile.

Beside quantised weights it is held in fixed point: 16 bits relative to its largest element, as two bytes that
the integer products of four bytes (dp4a) take without widening a weight. With k elements it errs by at most
√k · 2⁻¹⁶ of its norm, for k up to 16,384 no more than rounding to bf16 may (2⁻⁹); to widen
a byte to fp32 takes three instructions a weight, two such products take a half.
"""

import triton
import triton.language as tl

from peakward.kernels.ops.decode_step.triton.stored import DENSE, INT8, WORDS

LARGEST = tl.constexpr(32512)
"""127 · 256: the largest whole number whose bytes, rounded to the nearest, are both in int8."""


@triton.jit
def bits_of(  # type: ignore[no-untyped-def]
    ptr, K: tl.constexpr, PER_WORD: tl.constexpr, LANES: tl.constexpr, CHUNKS: tl.constexpr
):
    """A vector (K,) as it lies in memory, beside the words of a tile, chunk by chunk: a tuple.

    Elements in 16 bits come several at a time: a load of fewer elements than there are threads is made as
    it is used, and nothing is exchanged through shared memory.
    """
    AT_ONCE: tl.constexpr = 1 if ptr.dtype.element_ty == tl.float32 else 2 if PER_WORD == 2 else 4
    wide = ptr.to(tl.pointer_type(tl.int64 if AT_ONCE == 4 else tl.int32), bitcast=True)
    found = ()
    for chunk in tl.static_range(CHUNKS):
        word = chunk * (4 * LANES) + tl.arange(0, 4 * LANES)
        at = word * (PER_WORD // AT_ONCE)
        if PER_WORD == 8:
            # Words of int4 are not in the order of their columns.
            row = word // WORDS * 128 + word % 4 * 32
            at = row // AT_ONCE + word % WORDS // 4 * (8 // AT_ONCE)
        inside = word < K // PER_WORD
        for each in tl.static_range(PER_WORD // AT_ONCE):
            found += (tl.load(wide + at + each, mask=inside, other=0),)  # type: ignore[assignment]
    return found


@triton.jit
def column_of(  # type: ignore[no-untyped-def]
    bits, type_: tl.constexpr, CHUNK: tl.constexpr, COLUMN: tl.constexpr, PER_WORD: tl.constexpr
):
    """From `bits_of`, the elements beside one column of each word of a chunk, in fp32."""
    AT_ONCE: tl.constexpr = 1 if type_ == tl.float32 else 2 if PER_WORD == 2 else 4
    held = bits[(CHUNK * PER_WORD + COLUMN) // AT_ONCE]
    if AT_ONCE == 1:
        found = held.to(tl.float32, bitcast=True)
    else:
        found = (
            (held >> 16 * (COLUMN % AT_ONCE)).to(tl.int16).to(type_, bitcast=True).to(tl.float32)
        )
    return found


@triton.jit
def held(  # type: ignore[no-untyped-def]
    x_ptr,
    gains,
    gain_type: tl.constexpr,
    eps,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    PER_WORD: tl.constexpr,
    LANES: tl.constexpr,
    CHUNKS: tl.constexpr,
    NORMED: tl.constexpr,
):
    """x (K,) times the norm's gain (`bits_of`), chunk by chunk, and the factor that is left to multiply sums
    by."""
    bits = bits_of(x_ptr, K, PER_WORD, LANES, CHUNKS)
    chunks = ()
    squares = tl.zeros((4 * LANES,), tl.float32)
    peak = tl.zeros((4 * LANES,), tl.float32)
    for chunk in tl.static_range(CHUNKS):
        scaled = ()
        for column in tl.static_range(PER_WORD):
            x = column_of(bits, x_ptr.dtype.element_ty, chunk, column, PER_WORD)
            # Without a norm nothing but a NaN or an infinity, which no whole number could hand on.
            squares += x * x if NORMED else x * 0.0
            if NORMED:
                x *= column_of(gains, gain_type, chunk, column, PER_WORD)
            peak = tl.maximum(peak, tl.abs(x))
            scaled += (x,)  # type: ignore[assignment]
        chunks += (scaled,)  # type: ignore[assignment]
    factor = 1.0
    if NORMED:
        factor = 1.0 / tl.sqrt_rn(tl.sum(squares, 0) / K + eps)
    elif FORMAT != DENSE:
        factor = 1.0 + tl.sum(squares, 0)
    if FORMAT != DENSE:
        largest = tl.max(peak, 0)
        step = tl.where(largest == 0.0, 1.0, largest / LARGEST)
        factor *= step
        found = ()
        for chunk in tl.static_range(CHUNKS):
            found += (_in_bytes(chunks[chunk], 1.0 / step, FORMAT, LANES),)  # type: ignore[assignment]
    else:
        found = chunks
    return found, factor


@triton.jit
def _in_bytes(x, per_step, FORMAT: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """The columns of words as words of their upper and of their lower bytes.

    Of int4 both in the order in which a mask leaves the nibbles of a word in bytes: columns 0, 4, 1, 5, and
    after a shift 2, 6, 3, 7. And 8 times the sum of each lane's columns, for nibbles are 8 too large.
    """
    if FORMAT == INT8:
        w0, w1, w2, w3 = (
            _whole(x[0], per_step), _whole(x[1], per_step),
            _whole(x[2], per_step), _whole(x[3], per_step),
        )  # fmt: skip
        words = (_upper(w0, w1, w2, w3), _lower(w0, w1, w2, w3))
    else:
        w0, w1, w2, w3, w4, w5, w6, w7 = (
            _whole(x[0], per_step), _whole(x[1], per_step),
            _whole(x[2], per_step), _whole(x[3], per_step),
            _whole(x[4], per_step), _whole(x[5], per_step),
            _whole(x[6], per_step), _whole(x[7], per_step),
        )  # fmt: skip
        eighths = 8 * tl.sum((w0 + w1 + w2 + w3 + w4 + w5 + w6 + w7).reshape(LANES, 4), 1)
        words = (  # type: ignore[assignment]
            _upper(w0, w4, w1, w5), _lower(w0, w4, w1, w5),
            _upper(w2, w6, w3, w7), _lower(w2, w6, w3, w7),
            eighths,
        )  # fmt: skip
    return words


@triton.jit
def _whole(x, per_step):  # type: ignore[no-untyped-def]
    scaled = x * per_step
    return (scaled + tl.where(scaled < 0.0, -0.5, 0.5)).to(tl.int32)


@triton.jit
def _upper(a, b, c, d):  # type: ignore[no-untyped-def]
    """The upper bytes, rounded to the nearest so that the lower ones are signed too, in a word."""
    a, b, c, d = (a + 128) >> 8, (b + 128) >> 8, (c + 128) >> 8, (d + 128) >> 8
    return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | d << 24


@triton.jit
def _lower(a, b, c, d):  # type: ignore[no-untyped-def]
    return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | d << 24


@triton.jit
def added(  # type: ignore[no-untyped-def]
    acc,
    w,
    scale,
    x,
    type_: tl.constexpr,
    FORMAT: tl.constexpr,
    LANES: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """acc (BLOCK, LANES) and each lane's products of a tile with its chunk of x; of int8 in whole numbers."""
    BLOCK: tl.constexpr = w.shape[0]
    if FORMAT == DENSE:
        if type_ == tl.float32:
            product = w.to(tl.float32, bitcast=True) * x[0][None, :]
        elif type_ == tl.bfloat16:
            product = (w << 16).to(tl.float32, bitcast=True) * x[0][None, :]
            product += (w & -65536).to(tl.float32, bitcast=True) * x[1][None, :]
        else:
            first = w.to(tl.int16).to(type_, bitcast=True)
            second = (w >> 16).to(tl.int16).to(type_, bitcast=True)
            product = first.to(tl.float32) * x[0][None, :] + second.to(tl.float32) * x[1][None, :]
        acc += tl.sum(product.reshape(BLOCK, LANES, 4), 2)
    elif FORMAT == INT8:
        upper = dp4a(w, x[0][None, :], 0, NATIVE)
        both = dp4a(w, x[1][None, :], upper << 8, NATIVE)
        acc += tl.sum(both.reshape(BLOCK, LANES, 4), 2)
    else:
        first = w & 0x0F0F0F0F
        second = (w >> 4) & 0x0F0F0F0F
        both = dp4a(second, x[2][None, :], dp4a(first, x[0][None, :], 0, NATIVE), NATIVE) << 8
        both = dp4a(second, x[3][None, :], dp4a(first, x[1][None, :], both, NATIVE), NATIVE)
        sums = tl.sum(both.reshape(BLOCK, LANES, 4), 2) - x[4][None, :]
        acc += sums.to(tl.float32) * scale
    return acc


@triton.jit
def dp4a(a, b, c, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """c and the products of the four signed bytes of a with those of b, in int32; NATIVE in one
    instruction, which Triton's interpreter has not."""
    if NATIVE:
        a, b = tl.broadcast(a, b)
        c = c + tl.zeros_like(a)
        total = tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;",
            "=r,r,r,r",
            [a, b, c],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:
        total = c
        for byte in tl.static_range(4):
            total += (a << (24 - 8 * byte) >> 24) * (b << (24 - 8 * byte) >> 24)
    return total
