"""A cache of the tokens that were attended to most, and of the last ones: H2O (Zhang et al. 2023).

Each head of keys sums the attention that its queries gave to each token. Where a row is full, a new token
takes the place of the one with the least sum that is not among the last. Heads drop different tokens.
Positions stay those at which keys were rotated.
"""

from math import sqrt

import torch
from torch import Tensor

from peakward.lab.inference.passes import EMPTY, Pass
from peakward.lab.inference.sequences import MOST_SLOTS, SequenceCache
from peakward.records import check
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape

CHUNK = 256
"""Queries of a prompt whose attention is summed at a time: their scores alone are in memory."""


class HeavyHitterCache(SequenceCache):
    """`n_heavy` tokens with the largest sums and the last `n_recent`, itself included, of every row and head.

    A prompt is attended to in full, and then dropped to what is kept.
    """

    keeps_all = False

    def __init__(
        self,
        shape: ModelShape,
        *,
        n_rows: int,
        n_heavy: int,
        n_recent: int,
        device: str,
        dtype: torch.dtype,
    ) -> None:
        """
        Raises:
            PeakwardError: no recent token, or a model with a window or with ALiBi.
        """
        check.whole(n_heavy, "n_heavy", low=0, high=MOST_SLOTS)
        check.whole(n_recent, "n_recent", low=1, high=MOST_SLOTS)
        if shape.window is not None or shape.positions == "alibi":
            has = "a window" if shape.window is not None else "ALiBi"
            raise PeakwardError(
                f"expected a model without a window and without ALiBi for a cache of heavy hitters, got "
                f"{shape.name} with {has}: take another cache"
            )
        super().__init__(shape, n_rows=n_rows, limit=float("inf"), device=device)
        self.n_heavy, self.n_recent = n_heavy, n_recent
        size = (shape.n_layers, n_rows, shape.n_kv_heads, n_heavy + n_recent)
        self.keys = torch.zeros((*size, shape.head_dim), device=device, dtype=dtype)
        self.values = torch.zeros((*size, shape.head_dim), device=device, dtype=dtype)
        self.places = torch.full(size, EMPTY, device=device)
        """The position that each slot holds."""
        self.wide = torch.promote_types(dtype, torch.float32)
        self.sums = torch.zeros(size, device=device, dtype=self.wide)
        """The attention that each was given."""

    @property
    def n_bytes(self) -> int:
        return 2 * self.keys.nbytes + self.places.nbytes + self.sums.nbytes

    def reach(self, length: int) -> float:
        return min(length, self.n_heavy + self.n_recent)

    def trim(self, row: int, length: int) -> None:
        if length not in (0, self.lengths[row]):
            raise ValueError(
                f"expected a row to be emptied, got {length} of {self.lengths[row]} tokens to keep: some "
                "were dropped for later ones"
            )
        super().trim(row, length)
        if not length:
            self.places[:, row] = EMPTY
            self.sums[:, row] = 0

    def attends(self, n: int) -> bool:  # noqa: ARG002 (a mask cannot differ from head to head)
        return True

    def write(self, layer: int, at: Pass, k: Tensor, v: Tensor) -> None:
        if at.is_first:
            return  # `prompted` says which are kept.
        if at.n > 1:
            raise ValueError(f"expected one token behind others, got {at.n}")
        places, sums = self.places[layer, at.rows], self.sums[layer, at.rows]
        own = at.own[:, :, None]
        rank = sums.masked_fill(places > own - self.n_recent, torch.inf)
        slot = rank.masked_fill(places == EMPTY, -torch.inf).argmin(-1, keepdim=True)
        _put(places, slot, own.expand(slot.shape), at.active)
        _put(sums, slot, torch.zeros_like(slot, dtype=self.wide), at.active)
        for held, new in ((self.keys, k), (self.values, v)):
            _put(held[layer, at.rows], slot[..., None].expand(new.shape), new, at.active)

    def attend(self, layer: int, at: Pass, q: Tensor) -> Tensor:
        places, keys = self.places[layer, at.rows], self.keys[layer, at.rows]
        # (rows, kv_heads, heads that share one, slots) from here on.
        grouped = q[:, :, 0].unflatten(1, (keys.shape[1], -1))
        scores = (grouped @ keys.mT).to(self.wide) / sqrt(q.shape[-1])
        # Finite, for a row that holds nothing has no sum to divide by.
        least = torch.finfo(self.wide).min
        given = scores.masked_fill((places == EMPTY)[:, :, None], least).softmax(-1)
        new = given.sum(2)
        self.sums[layer, at.rows] += new if at.active is None else new * at.active[:, None, None]
        mixed = given.to(q.dtype) @ self.values[layer, at.rows]
        return mixed.flatten(1, 2)[:, :, None]

    def prompted(self, layer: int, at: Pass, q: Tensor, k: Tensor, v: Tensor) -> None:
        given, n = self._given(q, k), at.n
        kept = torch.arange(n, device=k.device).expand(given.shape)
        if n > self.n_heavy + self.n_recent:
            recent = kept[..., n - self.n_recent :]
            heavy = given[..., : n - self.n_recent].topk(self.n_heavy).indices
            kept = torch.cat((heavy, recent), dim=-1)
        held = (layer, at.rows, slice(None), slice(0, kept.shape[-1]))
        self.places[held], self.sums[held] = kept, given.gather(-1, kept)
        elements = kept[..., None].expand(*kept.shape, k.shape[-1])
        self.keys[held], self.values[held] = k.gather(2, elements), v.gather(2, elements)

    def _given(self, q: Tensor, k: Tensor) -> Tensor:
        """The attention that a prompt's tokens are given by the queries of each head of keys, summed:
        (rows, kv_heads, n)."""
        n = k.shape[2]
        given = torch.zeros(k.shape[:3], device=k.device, dtype=self.wide)
        position = torch.arange(n, device=k.device)
        for start in range(0, n, CHUNK):
            queries = q[:, :, start : start + CHUNK].unflatten(1, (k.shape[1], -1))
            scores = (queries @ k[:, :, None].mT).to(self.wide) / sqrt(q.shape[-1])
            later = position > position[start : start + CHUNK, None]
            given += scores.masked_fill(later, -torch.inf).softmax(-1).sum((2, 3))
        return given


def _put(held: Tensor, slot: Tensor, new: Tensor, active: Tensor | None) -> None:
    """Writes to one slot of each row and head, of rows that are active."""
    if active is not None:
        row = active.view(-1, *(1 for _ in slot.shape[1:]))
        new = torch.where(row, new, held.gather(2, slot))
    held.scatter_(2, slot, new)
