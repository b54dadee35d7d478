"""One row of activations, held in registers for all rows of a matrix, and its sum with a tile.

Beside quantised weights it is held in fixed point: 16 bits relative to the largest element of its lane, as
two bytes that the integer products of four bytes (dp4a) take without widening a weight. An element errs by
half a step and what the inverse of a step is rounded by, 0.516 of a step in all, and the largest is 32,512 of
them: k elements of a lane err by at most √k / 63,000 of their norm, for k up to 60,000 no more than rounding
to bf16 may (2⁻⁸). To widen a byte to fp32 takes three instructions a weight, two such products take a half.
"""

import triton
import triton.language as tl

from peakward.kernels.ops.decode_step.triton.stored import DENSE, INT4, INT8, WORDS

LARGEST = tl.constexpr(32512)
"""127 · 256: the largest whole number whose bytes, rounded to the nearest, are both in int8."""
ONES = tl.constexpr(12582912.0)
"""1.5 · 2²³: the fp32 numbers about it are whole."""
UPPER_HALVES = tl.constexpr(-0x0F0F0F10)
"""The mask of those of a word's bytes: 0xF0F0F0F0, signed."""
HALVES = tl.constexpr(-0x7F7F7F80)
"""A word of bytes of 128, 0x80808080, signed: it makes bytes that are 128 too large signed ones."""


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
        pair = (held >> COLUMN % AT_ONCE // 2 * 32).to(tl.int32)
        found = lower_half(pair, type_) if COLUMN % 2 == 0 else upper_half(pair, type_)
    return found


@triton.jit
def lower_half(words, type_: tl.constexpr):  # type: ignore[no-untyped-def]
    """The elements in the lower 16 bits of words of 32, in fp32."""
    if type_ == tl.bfloat16:
        found = (words << 16).to(tl.float32, bitcast=True)
    else:
        found = words.to(tl.int16).to(type_, bitcast=True).to(tl.float32)
    return found


@triton.jit
def upper_half(words, type_: tl.constexpr):  # type: ignore[no-untyped-def]
    """The elements in the upper 16 bits of words of 32, in fp32."""
    if type_ == tl.bfloat16:
        found = (words & -65536).to(tl.float32, bitcast=True)
    else:
        found = (words >> 16).to(tl.int16).to(type_, bitcast=True).to(tl.float32)
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
    NATIVE: tl.constexpr,
):
    """x (K,) times the norm's gain (`bits_of`), and the factor that is left to multiply sums by.

    Returns:
        By chunk, word of a lane, and column (of quantised weights digits, see `_digits`) tensors (LANES,);
        the factor of all sums, beside quantised weights of each lane's, (LANES,).
    """
    bits = bits_of(x_ptr, K, PER_WORD, LANES, CHUNKS)
    chunks = ()
    squares = tl.zeros((4 * LANES,), tl.float32)
    peak = tl.zeros((4 * LANES,), tl.float32)
    for chunk in tl.static_range(CHUNKS):
        scaled = ()
        for column in tl.static_range(PER_WORD):
            x = column_of(bits, x_ptr.dtype.element_ty, chunk, column, PER_WORD)
            if NORMED:
                squares += x * x
                x *= column_of(gains, gain_type, chunk, column, PER_WORD)
            if FORMAT != DENSE:
                peak = _larger(peak, tl.abs(x))
            scaled += (x,)  # type: ignore[assignment]
        chunks += (scaled,)  # type: ignore[assignment]
    factor = 1.0
    if NORMED:
        factor = 1.0 / tl.sqrt_rn(tl.sum(squares, 0) / K + eps)
    found = ()
    if FORMAT == DENSE:
        for chunk in tl.static_range(CHUNKS):
            found += (_by_word(chunks[chunk], LANES),)  # type: ignore[assignment]
    else:
        # Not below a number whose inverse is finite: what a lane holds is then below 1e-30, and may become
        # 0. A NaN or an infinity is handed on by it.
        step = _larger(tl.reduce(peak.reshape(LANES, 4), 1, _larger), 1e-30) / LARGEST
        per_step = tl.broadcast_to((1.0 / step)[:, None], (LANES, 4)).reshape(4 * LANES)
        for chunk in tl.static_range(CHUNKS):
            digits = _digits(chunks[chunk], per_step, FORMAT, NATIVE)
            of_chunk = _by_word(digits, LANES)
            if FORMAT == INT4:
                # Nibbles are 8 too large, and lie in the upper halves of bytes.
                of_chunk += (128 * _sum_of(of_chunk, NATIVE),)
            found += (of_chunk,)  # type: ignore[assignment]
        factor = step * (factor * (0.0625 if FORMAT == INT4 else 1.0))
    return found, factor


@triton.jit
def _larger(a, b):  # type: ignore[no-untyped-def]
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def words_of_lanes(words, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first to the fourth word of each lane, (…, LANES) each, of words (…, 4 · LANES)."""
    if len(words.shape) == 1:
        even, odd = tl.split(words.reshape(LANES, 2, 2))
    else:
        even, odd = tl.split(words.reshape(words.shape[0], LANES, 2, 2))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _by_word(columns, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Tensors (4 · LANES,) as four tuples of tensors (LANES,), one for each word of a lane."""
    by_word = ((), (), (), ())
    for each in tl.static_range(len(columns)):
        words = words_of_lanes(columns[each], LANES)
        by_word = (  # type: ignore[assignment]
            by_word[0] + (words[0],), by_word[1] + (words[1],),
            by_word[2] + (words[2],), by_word[3] + (words[3],),
        )  # fmt: skip
    return by_word


@triton.jit
def _digits(x, per_step, FORMAT: tl.constexpr, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The columns of words in units of a step, as words of their upper and of their lower bytes.

    Of int4 first of those columns whose nibbles are the lower halves of bytes, then of the others, in the
    order of the bytes.
    """
    if FORMAT == INT8:
        words = _bytes(x[0], x[1], x[2], x[3], per_step, NATIVE)
    else:
        low = _bytes(x[0], x[4], x[1], x[5], per_step, NATIVE)
        high = _bytes(x[2], x[6], x[3], x[7], per_step, NATIVE)
        words = (low[0], low[1], high[0], high[1])
    return words


@triton.jit
def _bytes(a, b, c, d, per_step, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Four numbers in units of a step as whole ones, and those as words of their upper and of their lower
    bytes; the upper rounded to the nearest, so that the lower ones are signed too."""
    a, b, c, d = (
        _whole_and_half(a, per_step), _whole_and_half(b, per_step),
        _whole_and_half(c, per_step), _whole_and_half(d, per_step),
    )  # fmt: skip
    if NATIVE:
        upper, lower = tl.inline_asm_elementwise(
            """{
            .reg .b32 first, second;
            prmt.b32 first, $2, $3, 0x5140;
            prmt.b32 second, $4, $5, 0x5140;
            prmt.b32 $0, first, second, 0x7632;
            prmt.b32 $1, first, second, 0x5410;
            }""",
            "=r,=r,r,r,r,r",
            [a, b, c, d],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    else:
        upper, lower = _in_word(a >> 8, b >> 8, c >> 8, d >> 8), _in_word(a, b, c, d)
    return upper, lower ^ HALVES


@triton.jit
def _sum_of(words, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sums of each lane's numbers, from the digits of its four words of int4."""
    ones = tl.full(words[0][0].shape, 0x01010101, tl.int32)
    upper = tl.zeros_like(ones)
    for each in tl.static_range(4):
        upper = dp4a(words[each][0], ones, upper, "s32", NATIVE)
        upper = dp4a(words[each][2], ones, upper, "s32", NATIVE)
    total = upper << 8
    for each in tl.static_range(4):
        total = dp4a(words[each][1], ones, total, "s32", NATIVE)
        total = dp4a(words[each][3], ones, total, "s32", NATIVE)
    return total


@triton.jit
def _whole_and_half(x, per_step):  # type: ignore[no-untyped-def]
    """The nearest whole number and half a byte, in the lower 16 bits of a word: the last of the bits of a
    number in fp32 that is large enough are its ones."""
    return (x * per_step + (ONES + 128.0)).to(tl.int32, bitcast=True)


@triton.jit
def _in_word(a, b, c, d):  # type: ignore[no-untyped-def]
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
    """acc (BLOCK, LANES) and each lane's products of a tile with its chunk of x; of int8 in whole numbers.

    A product of int8 is at most 128 · 32,512, so that int32 holds the sum of 516 columns of a lane.
    `settings.cut_for` gives a lane 512 at most of matrices of up to 131,072 columns. Of int4 only the 32
    columns of a chunk are summed in whole numbers.
    """
    words = words_of_lanes(w, LANES)
    if FORMAT == DENSE:
        for each in tl.static_range(4):
            if type_ == tl.float32:
                acc += words[each].to(tl.float32, bitcast=True) * x[each][0][None, :]
            else:
                acc += lower_half(words[each], type_) * x[each][0][None, :]
                acc += upper_half(words[each], type_) * x[each][1][None, :]
    elif FORMAT == INT8:
        upper = tl.zeros_like(acc)
        for each in tl.static_range(4):
            upper = dp4a(words[each], x[each][0][None, :], upper, "s32", NATIVE)
        acc += upper << 8
        for each in tl.static_range(4):
            acc = dp4a(words[each], x[each][1][None, :], acc, "s32", NATIVE)
    else:
        # The nibbles that lie in the lower halves of bytes, times 16, and those in the upper ones.
        upper = tl.zeros(acc.shape, tl.int32)
        lower = tl.zeros(acc.shape, tl.int32)
        for each in tl.static_range(4):
            low = words[each] & 0x0F0F0F0F
            upper = dp4a(low, x[each][0][None, :], upper, "u32", NATIVE)
            lower = dp4a(low, x[each][1][None, :], lower, "u32", NATIVE)
        upper, lower = upper << 4, (lower << 4) - x[4][None, :]
        for each in tl.static_range(4):
            high = words[each] & UPPER_HALVES
            upper = dp4a(high, x[each][2][None, :], upper, "u32", NATIVE)
            lower = dp4a(high, x[each][3][None, :], lower, "u32", NATIVE)
        both = (upper << 8) + lower
        acc += both.to(tl.float32) * scale
    return acc


@triton.jit
def dp4a(a, b, c, a_type: tl.constexpr, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """c and the products of the four bytes of a, signed ("s32") or not ("u32"), with the signed ones of b, in
    int32; NATIVE in one instruction, which Triton's interpreter has not."""
    if NATIVE:
        a, b = tl.broadcast(a, b)
        total = tl.inline_asm_elementwise(
            "dp4a." + a_type + ".s32 $0, $1, $2, $3;",
            "=r,r,r,r",
            [a, b, c],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:
        total = c
        for byte in tl.static_range(4):
            of_a = (a >> 8 * byte) & 255 if a_type == "u32" else a << (24 - 8 * byte) >> 24
            total += of_a * (b << (24 - 8 * byte) >> 24)
    return total
