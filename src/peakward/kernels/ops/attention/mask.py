"""Which keys a query may attend to: shared by every implementation."""

import torch
from torch import Tensor


def causal_mask(seq_len: int, window: int | None, device: torch.device) -> Tensor:
    """(seq_len, seq_len) of bool: True where the row's query may attend to the column's key."""
    position = torch.arange(seq_len, device=device)
    distance = position[:, None] - position[None, :]
    mask = distance >= 0
    return mask if window is None else mask & (distance < window)


def first_in_reach(position: int, window: int | None) -> int:
    """The first position that a token at `position` may attend to."""
    return 0 if window is None else max(0, position - window + 1)


def sees_all(q: Tensor, k: Tensor) -> bool:
    """Whether no mask is needed: the only query is at the position of the last of several keys, and all
    are in its reach."""
    return q.shape[2] < k.shape[2]
