"""Flash-decoding: the keys of a sequence are split over programs, whose results a second kernel joins.

Dao et al. 2023 (https://crfm.stanford.edu/2023/10/12/flashdecoding.html). A step of decode reads its
cache once and computes next to nothing, so the bytes in flight decide its time, and of narrow caches the
instructions for each element. Keys are the left side of their product, which a Hopper GPU reads from shared
memory as they are stored; the heads that share them are its right side, of 16 columns at least. A head
dimension of 80 or 96 is padded to 128 with columns that are not fetched. (As products of 64 and the rest it
took 197 registers a thread for 90, and spilled in int8.) The scale of a quantised position multiplies its
score and its weight, and not its elements. Keys of int8 are multiplied as they are, by queries in two digits
of int8 each; other narrow elements are widened by their bits (`narrow.py`). In fp32 the products do not use
tensor cores; only tests should need that.
"""

from peakward.kernels.ops.decode_attention.triton.launch import decode_attention
from peakward.kernels.ops.decode_attention.triton.settings import (
    H100_MULTIPROCESSORS,
    Settings,
    others_for,
    settings_for,
)

__all__ = [
    "H100_MULTIPROCESSORS",
    "Settings",
    "decode_attention",
    "others_for",
    "settings_for",
]
