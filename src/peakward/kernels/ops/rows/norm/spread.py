"""The parts shared by kernels whose rows are spread over several programs.

A program holds some columns of every row that its group goes through. Its warps tell the others what
they find of a row by one word each: two numbers of fp32, without a flag that says that they are there.
Memory is filled with a pattern that no two numbers have, and a reader of a word reads it until it
differs, so neither a barrier nor a fence is needed. Words are awaited a row late (`LAG`), when they are
usually there. Rows come through shared memory, from which they are read twice.

The kernels are in Gluon, because Triton's pipeline holds a row ahead but not one behind.
"""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

LAG = gl.constexpr(1)
"""Rows between a row's words and the use of them."""

UNSET = gl.constexpr(-1)
"""A word that no one has written: of two NaNs that no arithmetic gives."""
_AGAIN = "{ .reg .pred p, q; AGAIN_${:uid}: "
_UNTIL = " @p bra AGAIN_${:uid}; }"
_LOAD = "ld.relaxed.gpu.global.b64 "
AWAIT_1 = gl.constexpr(f"{_AGAIN}{_LOAD}$0, [$1]; setp.eq.s64 p, $0, {UNSET.value};{_UNTIL}")
AWAIT_2 = gl.constexpr(
    f"{_AGAIN}{_LOAD}$0, [$2]; {_LOAD}$1, [$3];"
    f" setp.eq.s64 q, $0, {UNSET.value}; setp.eq.or.s64 p, $1, {UNSET.value}, q;{_UNTIL}"
)
AWAIT_4 = gl.constexpr(
    f"{_AGAIN}{_LOAD}$0, [$4]; {_LOAD}$1, [$5]; {_LOAD}$2, [$6]; {_LOAD}$3, [$7];"
    f" setp.eq.s64 p, $0, {UNSET.value}; setp.eq.or.s64 q, $1, {UNSET.value}, p;"
    f" setp.eq.or.s64 p, $2, {UNSET.value}, q; setp.eq.or.s64 q, $3, {UNSET.value}, p; mov.pred p, q;{_UNTIL}"
)
LANES = gl.constexpr(32)


@gluon.jit
def bring(slot, row_ptr, column, inside):  # type: ignore[no-untyped-def]
    async_copy.async_copy_global_to_shared(slot, row_ptr + column, mask=inside)


@gluon.jit
def bits_of(value):  # type: ignore[no-untyped-def]
    """fp32 in the low half of a word; of NaNs the one that makes no `UNSET`."""
    bits = value.to(gl.int32, bitcast=True)
    bits = gl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC00000, bits)
    return bits.to(gl.int64) & 0xFFFFFFFF


@gluon.jit
def ticket_of(words_ptr):  # type: ignore[no-untyped-def]
    """How many programs began before this one, by the word before the first: a group by ticket whose members
    are not all resident is the last one, and waits for a whole one to end."""
    counter = (words_ptr - 1).to(gl.pointer_type(gl.int32))
    return gl.atomic_add(counter, 1, sem="relaxed") - UNSET


@gluon.jit
def tell(words_ptr, word):  # type: ignore[no-untyped-def]
    gl.atomic_xchg(words_ptr, word, sem="relaxed", scope="gpu")


@gluon.jit
def awaited(words_ptr, n_words, WORDS: gl.constexpr, WARPS: gl.constexpr):  # type: ignore[no-untyped-def]
    """Which of WORDS words, their high and their low numbers, 0 beyond n_words, once all are there: in every
    warp by itself."""
    EACH: gl.constexpr = WORDS // LANES
    LAYOUT: gl.constexpr = gl.BlockedLayout([EACH], [LANES], [WARPS], [0])
    word = gl.arange(0, WORDS, layout=LAYOUT)
    at = (words_ptr + gl.where(word < n_words, word, 0)).to(gl.int64)
    if EACH == 1:
        found = gl.inline_asm_elementwise(
            AWAIT_1, "=&l,l", [at], dtype=gl.int64, is_pure=False, pack=1
        )
    elif EACH == 2:
        found = gl.inline_asm_elementwise(
            AWAIT_2, "=&l,=&l,l,l", [at], dtype=gl.int64, is_pure=False, pack=2
        )
    else:
        found = gl.inline_asm_elementwise(
            AWAIT_4, "=&l,=&l,=&l,=&l,l,l,l,l", [at], dtype=gl.int64, is_pure=False, pack=4
        )
    low = found.to(gl.int32).to(gl.float32, bitcast=True)
    high = (found >> 32).to(gl.int32).to(gl.float32, bitcast=True)
    return word, gl.where(word < n_words, high, 0.0), gl.where(word < n_words, low, 0.0)


def unset(n_words: int, device: torch.device) -> Tensor:
    """Room for so many words, and before them for the ticket."""
    return torch.full((1 + n_words,), UNSET.value, dtype=torch.int64, device=device)[1:]
