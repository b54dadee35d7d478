"""The rule of a computation, beside the tensors; every implementation of the operator is given it."""

from typing import NamedTuple

from torch import Tensor


class Rule(NamedTuple):
    """Which keys a query attends to, and how its scores are scaled."""

    causal: bool
    """Query i sees keys up to i + k_len - q_len: both sequences end together."""
    window: int | None
    """Each query sees only the allowed keys less than `window` before it; causal only."""
    scale: float


class Packing(NamedTuple):
    """Where sequences begin in tensors of (tokens, heads, head_dim)."""

    q_starts: Tensor
    """(batch + 1,) of int32, from 0 to all tokens."""
    k_starts: Tensor
    q_len: int
    """The longest sequence's."""
    k_len: int
