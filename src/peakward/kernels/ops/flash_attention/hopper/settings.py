"""Tile sizes, from measurements on an H100 (bf16, 16,384 tokens, 2026-11-22)."""

from typing import NamedTuple

import torch

KEYS = 128
"""A tile of keys. Of 64, head dimension 128 lost 4 to 12% (causal, 512 left out, before tiles were
drawn from a counter); 256 do not fit the registers."""
ROWS = 64
"""The rows of queries, or of keys in the backward pass, for each warpgroup: those of one product."""
H100_MULTIPROCESSORS = 132
"""The multiprocessors assumed where there is no GPU."""


class ForwardSettings(NamedTuple):
    """The number of warpgroups that share a tile of keys, and of tiles on their way."""

    warpgroups: int
    stages: int
    """The tiles of keys, and of values, on their way or in use."""
    q_stages: int
    """The tiles of queries on their way or in use, for each warpgroup."""
    registers: int
    """The registers of a thread of every warpgroup but the first. The copying warp has 24, and the
    first warpgroup the rest."""


TWO = ForwardSettings(warpgroups=2, stages=2, q_stages=2, registers=240)
"""With one tile of queries in place of two, head dimension 128 took 121 µs for 109 with 512 causal
keys, 435 for 430 with 4,096; 80 took 731 for 710, 96 took 516 for 504. Beyond head dimension 64 no more
tiles fit."""
TWO_DEEP = TWO._replace(stages=4)
"""For head dimension 64: 335 µs for 339 with 2,048 causal keys, 608 for 612 with 4,096, but 141 for 139
with 512."""
THREE = ForwardSettings(warpgroups=3, stages=2, q_stages=1, registers=160)
"""For head dimension 64: with a wider head the results do not fit 160 registers."""
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
    """The number of programs: one a multiprocessor, because each takes most of its registers and shared
    memory."""
    if device.type != "cuda":
        return H100_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


class BackwardSettings(NamedTuple):
    """The tiles that two warpgroups work on, and the number of tiles on their way."""

    queries: int
    """The queries of a tile."""
    at_once: int
    """The queries of a tile whose scores a warpgroup holds together. With 128 of them, scores and
    gradients take 128 of a thread's 240 registers, and dk and dv as many as head_dim."""
    kv_stages: int
    """Tiles of keys and values, on their way or in use."""


WHOLE = BackwardSettings(queries=128, at_once=128, kv_stages=2)
"""For head dimension 64: causal 4,096, two stages took 1.69 ms for 1.72 (when each step still computed a
mask)."""
HALVES = BackwardSettings(queries=128, at_once=64, kv_stages=1)
"""For 80 and 96, whose sums leave too few registers for the scores of 128 queries. Taken whole 80 reads up
to 10 spilled words back a step, with a mask up to 31, and the products of 96 wait for one another (C7512);
in halves 80 spills none within the loops, and one warpgroup of 96 reads up to 11 back. Causal, 80 took
832 µs for 912 with 1,024 keys, 2.10 ms for 2.13 with 4,096, but 7.25 for 7.08 with 16,384. Of 64 there are
some 8% more instructions in halves: 1.62 ms for 1.55 with 4,096."""
NARROW = BackwardSettings(queries=64, at_once=64, kv_stages=1)
"""For 128: with 128 queries neither registers nor shared memory suffice."""


def backward_settings_for(head_dim: int) -> BackwardSettings:
    if head_dim <= 64:
        return WHOLE
    return NARROW if head_dim == 128 else HALVES


def columns_of(head_dim: int) -> tuple[int, int]:
    """The widths of a tile's two parts in the backward pass, which products and copies take apart. Both
    are powers of two, as tiles must be, and nothing is paid beyond head_dim."""
    return (head_dim, 0) if head_dim in (64, 128) else (64, head_dim - 64)
