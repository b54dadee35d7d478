"""Tile sizes of the forward pass, by what was measured on an H100 (bf16, 16,384 tokens, 2026-11-22)."""

from typing import NamedTuple

import torch

KEYS = 128
"""A tile of keys. Of 64, head dimension 128 lost 4 to 12% (causal, 512 left out, before tiles were
drawn from a counter); 256 do not fit the registers."""
ROWS = 64
"""Of queries, or of keys in the backward pass, for each warpgroup: what one product takes."""
H100_MULTIPROCESSORS = 132
"""For compiling where there is no GPU."""


class ForwardSettings(NamedTuple):
    """How many warpgroups share a tile of keys, and how many tiles are on their way."""

    warpgroups: int
    stages: int
    """Tiles of keys, and of values, on their way or in use."""
    q_stages: int
    """Tiles of queries, for each warpgroup, likewise."""
    registers: int
    """A thread of a warpgroup beyond the first; 24 are the copying warp's, the first takes the rest."""


TWO = ForwardSettings(warpgroups=2, stages=2, q_stages=2, registers=240)
"""Of one tile of queries in place of two, head dimension 128 took 121 µs for 109 with 512 causal keys,
435 for 430 with 4,096; 80 took 731 for 710, 96 took 516 for 504. Of beyond 64 no more tiles fit."""
TWO_DEEP = TWO._replace(stages=4)
"""Of head dimension 64: 335 µs for 339 with 2,048 causal keys, 608 for 612 with 4,096, but 141 for 139
with 512."""
THREE = ForwardSettings(warpgroups=3, stages=2, q_stages=1, registers=160)
"""For head dimension 64: of a wider one results do not fit 160 registers."""
LONG = 32
"""Tiles of keys to a tile of queries, on average, from which three warpgroups pay."""


def forward_settings_for(head_dim: int, k_len: int, *, causal: bool) -> ForwardSettings:
    """Three warpgroups where registers allow it and a tile's work is long: of head dimension 64,
    causal, 2.00 ms against 2.29 at 16,384 tokens, 612 µs against 608 at 4,096, and 370 against 335 at
    2,048, where a tile of 192 rows is too much of the whole."""
    if head_dim > 64:
        return TWO
    n_tiles = k_len / KEYS / (2 if causal else 1)
    return THREE if n_tiles >= LONG else TWO_DEEP


def n_programs(device: torch.device) -> int:
    """One a multiprocessor: each takes most of its registers and shared memory."""
    if device.type != "cuda":
        return H100_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def queries_for(head_dim: int) -> int:
    """A tile of queries in the backward pass: with 128 of them, sums for head dimension 128 and the
    scores do not fit a warpgroup's registers together."""
    return 128 if head_dim <= 64 else 64


def kv_stages_for(head_dim: int) -> int:
    """Tiles of keys and values in the backward pass, on their way or in use: of head dimension 64, causal
    4,096, two took 1.69 ms for 1.72 (when each step still computed a mask); of 128 one fits."""
    return 2 if head_dim <= 64 else 1
