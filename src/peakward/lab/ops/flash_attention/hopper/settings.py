"""Tile sizes of the forward pass, by what was measured on an H100 (bf16, 16,384 tokens, 2026-11-22)."""

from typing import NamedTuple

import torch

KEYS = 128
"""A tile of keys. Of 64, head dimension 128 lost 4 to 12% (causal, 512 left out, before tiles were
drawn from a counter); 256 do not fit the registers."""
ROWS = 64
"""Of queries, or of keys in the backward pass, for each warpgroup: what one product takes."""
L2_BYTES = 16 << 20
"""What of the L2 (50 MiB on an H100) the heads that are worked on at once may take."""
H100_MULTIPROCESSORS = 132
"""For compiling where there is no GPU."""


class ForwardSettings(NamedTuple):
    """How many warpgroups share a tile of keys, and how many such tiles are on their way."""

    warpgroups: int
    stages: int
    registers: int
    """A thread of a warpgroup beyond the first; 24 are the copying warp's, the first takes the rest."""
    pairs: bool = False
    """Weights wait for their product two to a register."""
    q_stages: int = 1
    """Tiles of queries, for each warpgroup, on their way or in use."""
    carried: bool = False
    """A tile's last product is asked for with the next one's first; takes two `q_stages` to pay."""
    l2_bytes: int = L2_BYTES
    """Of keys and values of the heads that are worked on at once. Heaviest tiles come first, and with
    them all keys of these heads: with few heads that is soon over, and memory evenly used."""


class BackwardSettings(NamedTuple):
    """How weights wait for their product and their gradients."""

    pairs: bool = False
    """Two to a register; else each is rounded by itself, at a quarter of the rate."""
    ahead: bool = False
    """The scores of a tile of queries are multiplied while the one before it adds its dq."""
    kv_stages: int = 1
    """Tiles of keys and values on their way or in use; of head dimension 128 one fits."""
    quads: bool = False
    """dq's sums are read four at a time when they are rounded."""


EACH = BackwardSettings()
PAIRS = BackwardSettings(pairs=True)
AHEAD = BackwardSettings(pairs=True, ahead=True)
AHEAD_QUADS = AHEAD._replace(quads=True)
AHEAD_QUADS_DEEP = AHEAD_QUADS._replace(kv_stages=2)


TWO = ForwardSettings(warpgroups=2, stages=2, registers=240)
THREE = ForwardSettings(warpgroups=3, stages=2, registers=160)
CARRIED = TWO._replace(pairs=True, q_stages=2, carried=True)
CARRIED_DEEP = CARRIED._replace(stages=4)
"""For head dimension 64: of 128, queries and results leave room for two."""
CARRIED_THREE = CARRIED_DEEP._replace(warpgroups=3, registers=160)
"""Not measured yet: `benchmarks/kernels/flash_attention_hopper_sweep.py` takes it apart."""
LONG = 16
"""Tiles of keys to a tile of queries, on average, from which three warpgroups pay."""


def forward_settings_for(head_dim: int, k_len: int, *, causal: bool) -> ForwardSettings:
    """Three warpgroups where registers allow it and a tile's work is long: of head dimension 64,
    causal, 490 against 431 TFLOP/s at 16,384 tokens, 413 against 389 at 4,096, but 244 against 292
    at 1,024, where a tile of 192 rows is too much of the whole."""
    if head_dim > 64:
        return TWO
    n_tiles = k_len / KEYS / (2 if causal else 1)
    return THREE if n_tiles >= LONG else TWO


def n_programs(device: torch.device) -> int:
    """One a multiprocessor: each takes most of its registers and shared memory."""
    if device.type != "cuda":
        return H100_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def queries_for(head_dim: int) -> int:
    """A tile of queries in the backward pass: with 128 of them, sums for head dimension 128 and the
    scores do not fit a warpgroup's registers together."""
    return 128 if head_dim <= 64 else 64
