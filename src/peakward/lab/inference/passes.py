"""New tokens of some rows of a cache, as the decoder sees them in one pass."""

from collections.abc import Sequence
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from peakward.kernels.ops.attention.api import AttentionFn
from peakward.lab.models.decoder import positions, score_bias, slopes
from peakward.records.model_shape import ModelShape

if TYPE_CHECKING:
    from peakward.lab.inference.sequences import SequenceCache

EMPTY = -1
"""The position of a slot that holds no token."""


def sent(values: Sequence[Any], dtype: torch.dtype, device: str) -> Tensor:
    """The values on the device. Nothing waits until they are there."""
    here = torch.tensor(values, dtype=dtype, pin_memory=torch.device(device).type == "cuda")
    return here.to(device, non_blocking=True)


class PassLayer(NamedTuple):
    """One layer of a pass, as `cache.KeptLayer`."""

    at: "Pass"
    number: int

    def extend(self, k: Tensor, v: Tensor, *, window: int | None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """See `cache.KeptLayer`. A cache that attends by itself has no use for what is returned."""
        cache = self.at.cache
        cache.write(self.number, self.at, k, v)
        if self.at.is_first or self.at.by_cache:
            return k, v
        return cache.read(self.number, self.at)

    def attend(
        self,
        attention: AttentionFn,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        window: int | None,
        bias: Tensor | None,
    ) -> Tensor:
        """See `cache.KeptLayer`. Tokens of empty rows attend among themselves, as without a cache."""
        if self.at.is_first:
            self.at.cache.prompted(self.number, self.at, q, k, v)
            return attention(q, k, v, window=window, bias=bias)
        if self.at.by_cache:
            return self.at.cache.attend(self.number, self.at, q)
        return attention(q, k, v, window=None, bias=bias)


class Pass:
    """n new tokens of some rows, as `cache.Kept`. It is for one call of the decoder."""

    def __init__(
        self,
        cache: "SequenceCache",
        rows: slice,
        n: int,
        longest: int | None = None,
        active: Tensor | None = None,
    ) -> None:
        self.cache, self.rows, self.n, self.active = cache, rows, n, active
        self.longest = max(cache.lengths[rows]) + n if longest is None else longest
        """The tokens of the longest row at most, the new ones included."""
        self.is_first = self.longest == n
        self.by_cache = not self.is_first and cache.attends(n)
        self.start: int | Tensor = 0 if self.is_first else cache.held[rows]
        self.layers = [PassLayer(self, number) for number in range(cache.shape.n_layers)]

    @cached_property
    def own(self) -> Tensor:
        """The positions of the new tokens, (rows, n)."""
        return positions(self.n, self.cache.held[self.rows])

    @cached_property
    def ends(self) -> Tensor:
        """The tokens of each row, the new ones included, (rows,)."""
        return self.cache.held[self.rows] + self.n

    def bias(self, n: int, like: Tensor) -> Tensor | None:
        """See `cache.Kept`."""
        # A decoder asks, whose caches are made with its own shape.
        shape = cast(ModelShape, self.cache.shape)
        if self.is_first:
            return score_bias(shape, n, like)
        if self.by_cache:
            return None
        # (rows, n, slots) from here on.
        slots = self.cache.slots(self)[:, None]
        distance = self.own[..., None] - slots
        seen = (distance >= 0) & (slots != EMPTY)
        if shape.window is not None:
            seen = seen & (distance < shape.window)
        wide = torch.promote_types(like.dtype, torch.float32)
        unseen = torch.zeros(seen.shape, dtype=wide, device=seen.device).masked_fill(~seen, -inf)
        if shape.positions != "alibi":
            return unseen[:, None]
        return unseen[:, None] - slopes(shape, like)[:, None, None] * distance.clamp(min=0)[:, None]
