"""The cut of rows of logits; it changes no result beyond rounding."""

from typing import NamedTuple

from torch import Tensor

VECTOR_BYTES = 16
N_MULTIPROCESSORS = 132
"""The multiprocessors of an H100 and of an H200."""


class Settings(NamedTuple):
    """The cut of a row."""

    block: int
    """The number of logits that a program has in flight."""
    num_warps: int


def settings_for(n_tokens: int, vocab: int, itemsize: int) -> Settings:
    """Two vectors a thread, and the most warps that leave a row two pieces: of few rows up to 32, so that a
    multiprocessor has as many, of many up to eight of which the last piece leaves little idle, an eighth
    of a row (8,192 × 10,000 on an H100: 72.1 µs for eight warps' 72.7; 8,192 × 32,000: 186 for four's 189).
    """
    for num_warps in (32, 16, 8, 4, 2):
        chosen = _settings(num_warps, 2, itemsize)
        is_idle_anyway = n_tokens * num_warps <= N_MULTIPROCESSORS * 32
        is_filled = num_warps <= 8 and -vocab % chosen.block <= vocab // 8
        if vocab > chosen.block and (is_idle_anyway or is_filled):
            return chosen
    return _settings(1, 2, itemsize)


def others_for(itemsize: int) -> tuple[Settings, ...]:
    """Settings to time beside those of the rule."""
    return tuple(_settings(warps, each, itemsize) for warps in (2, 4, 8, 16, 32) for each in (2, 4))


def gradient_settings_for(itemsize: int) -> Settings:
    """Two vectors a thread: on an H100 within 1% of the fastest from 10,000 to 128,256 logits, where four
    are up to 5% slower."""
    return _settings(4, 2, itemsize)


def settings_of_both(vocab: int, itemsize: int) -> Settings:
    """For rows that are read twice: few in work, each with many warps, so that they are in the L2
    still: all that a GPU works at, 48 warps a multiprocessor, in 28 MiB of an H100's 50 (16 warps a
    row: 431 µs for 8's 521 of 8,192 × 32,000; 8: 144 for 16's 213 of 8,192 × 10,000). Two vectors a
    thread: with 32 warps four took 944 µs for 750 of 8,192 × 50,257, and of 4,096 × 128,256 as long."""
    rows_bytes = N_MULTIPROCESSORS * vocab * itemsize
    fitting = (each for each in (8, 16) if 48 // each * rows_bytes <= 28 << 20)
    return _settings(next(fitting, 32), 2, itemsize)


def _settings(num_warps: int, vectors: int, itemsize: int) -> Settings:
    return Settings(num_warps * 32 * vectors * VECTOR_BYTES // itemsize, num_warps)


def cut(settings: Settings, logits: Tensor) -> dict[str, int]:
    """How a launch cuts the rows."""
    vector = VECTOR_BYTES // logits.element_size()
    return {
        "LANES": settings.block // vector,
        "VECTOR": vector,
        "num_warps": settings.num_warps,
    }
