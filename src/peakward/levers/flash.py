"""What Peakward's own attention kernels cannot be combined with (`kernels/ops/flash_attention` and
`kernels/ops/decode_attention`)."""

from typing import NamedTuple

from peakward.hardware.compute_capability import spell
from peakward.records.case import Attention, ModelCase


class _Taken(NamedTuple):
    """By one of them."""

    head_dims: tuple[int, ...]
    head_dims_in_words: str
    windows: bool
    compute_capability: tuple[int, int] | None
    """The only one that it runs on; None where any younger one will do too."""


_TAKEN: dict[Attention, _Taken] = {
    "flash": _Taken(tuple(range(16, 257)), "from 16 to 256", True, None),
    "flash-hopper": _Taken((64, 80, 96, 128), "of 64, 80, 96 or 128", False, (9, 0)),
    "flash-decode": _Taken(tuple(range(1, 257)), "from 1 to 256", True, None),
}


def flash_obstacle(case: ModelCase, *, compute_capability: tuple[int, int] | None) -> str | None:
    """Why the case's own attention kernel does not go with its model or GPU, or None.

    Args:
        compute_capability: of the device; None where it is not known, and then no obstacle.
    """
    attention, shape = case.configuration.attention, case.model
    taken = _TAKEN.get(attention)
    if taken is None:
        return None
    if shape.head_dim not in taken.head_dims:
        got = shape.head_dim
        return f"attention {attention} needs a head_dim {taken.head_dims_in_words}, got {got}"
    if shape.positions == "alibi":
        # The decoder hands a bias over, (heads, queries, keys); the kernels take slopes.
        return f"attention {attention} needs positions without a bias on the scores, got alibi"
    if shape.window is not None and not taken.windows:
        return f"attention {attention} needs a model without a window, got {shape.window}"
    only = taken.compute_capability
    if case.device == "cuda" and only is not None and compute_capability not in (None, only):
        needed, here = spell(only), spell(compute_capability)
        return f"attention {attention} needs compute capability {needed}, got {here}"
    return None
