"""Which keys a query may attend to: shared by every implementation."""

import torch
from torch import Tensor


def causal_mask(seq_len: int, window: int | None, device: torch.device) -> Tensor:
    """(seq_len, seq_len) of bool: True where the row's query may attend to the column's key."""
    position = torch.arange(seq_len, device=device)
    distance = position[:, None] - position[None, :]
    mask = distance >= 0
    return mask if window is None else mask & (distance < window)
