"""Caches of generation: sequences of any lengths, one a row, in the form that serves them.

A prompt goes into its row alone (`prefill`), so that no padding is computed; then all rows go on together,
each at its own position (`step`). A row that is released takes the next prompt. Lengths are known to the
host, and beside that kept on the device, so that a step waits for nothing.

`ContiguousCache` has room for the longest sequence in every row, `QuantizedCache` in a byte an element.
`SlidingCache` has a ring of the last
tokens, and may keep the first ones too. `paged.PagedCache` holds pages that rows share.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from peakward.kernels.ops.attention.api import AttentionFn
from peakward.kernels.ops.attention.own import DECODE
from peakward.kernels.ops.decode_attention.api import MOST_QUERIES, decode_attention
from peakward.kernels.ops.decode_attention.reference import dequantized, quantized
from peakward.kernels.ops.rotation.api import rotate
from peakward.lab.models.decoder import positions, rotation, score_bias, slopes
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape

EMPTY = -1
"""The position of a slot that holds no token."""


class SequenceCache(ABC):
    """Keys and values of `n_rows` sequences; `lengths` are those held."""

    def __init__(
        self,
        shape: ModelShape,
        *,
        n_rows: int,
        limit: float,
        device: str,
        attention: Literal["as-model", "flash-decode"] = "as-model",
    ) -> None:
        """
        Args:
            limit: the most tokens of a row.
            attention: of new tokens to those held: the model's own, with a mask, or Peakward's kernel where
                they are at most 8 in a row.

        Raises:
            PeakwardError: the kernel, for a model with a bias on scores.
        """
        if attention == DECODE and shape.positions == "alibi":
            raise PeakwardError(
                f"expected no bias on scores for {DECODE}, got {shape.name} with ALiBi: take as-model"
            )
        self.shape, self.device, self.attention = shape, device, attention
        self.limit = min(limit, shape.max_seq_len) if shape.positions == "learned" else limit
        self.lengths = [0] * n_rows
        self.held = torch.zeros(n_rows, dtype=torch.int64, device=device)
        """The lengths again, on the device."""

    def prefill(self, model: nn.Module, row: int, ids: Sequence[int]) -> Tensor:
        """Takes a prompt into an empty row: the logits behind its last token, (1, vocab).

        Raises:
            PeakwardError: the prompt is empty, has a token that the model does not know, or is longer than
                the cache has room for; the row is then empty again.
        """
        if not ids:
            raise PeakwardError("expected a prompt of at least one token, got an empty one")
        if self.lengths[row]:
            raise ValueError(f"expected an empty row, got {self.lengths[row]} tokens in row {row}")
        if not 0 <= min(ids) <= max(ids) < self.shape.vocab_size:
            raise PeakwardError(
                f"expected tokens from 0 to {self.shape.vocab_size - 1:,}, got "
                f"{min(ids) if min(ids) < 0 else max(ids):,}: take the tokenizer of {self.shape.name}"
            )
        try:
            n_known = self._take_known(row, ids)
            rest = torch.tensor([ids[n_known:]], device=self.device)
            return self.logits(model, rest, slice(row, row + 1))
        except PeakwardError:
            self.release(row)
            raise

    def step(self, model: nn.Module, ids: Tensor) -> Tensor:
        """Takes the next token of every row, (n_rows, 1): the logits behind them, (n_rows, vocab)."""
        return self.logits(model, ids, slice(0, len(self.lengths)))

    def logits(self, model: nn.Module, ids: Tensor, rows: slice) -> Tensor:
        """Takes ids (rows, n) behind what these rows hold: the logits behind the last, (rows, vocab).

        Raises:
            PeakwardError: they are more than the cache has room for.
        """
        return self.all_logits(model, ids, rows, n_logits=1)[:, -1]

    def all_logits(self, model: nn.Module, ids: Tensor, rows: slice, *, n_logits: int) -> Tensor:
        """As `logits`, behind each of the last `n_logits` of the ids: (rows, n_logits, vocab).

        Raises:
            PeakwardError: they are more than the cache has room for.
        """
        n = ids.shape[1]
        if (longest := max(self.lengths[rows]) + n) > self.limit:
            raise PeakwardError(
                f"expected sequences of at most {self.limit:,} tokens, got one of {longest:,}: "
                "make a larger cache, or generate fewer tokens"
            )
        self._make_room(rows, n)
        found: Tensor = model(ids, cache=Pass(self, rows, n), n_logits=n_logits)
        self.lengths[rows] = [length + n for length in self.lengths[rows]]
        self.held[rows] += n
        return found

    def release(self, row: int) -> None:
        """Empties a row."""
        self.trim(row, 0)

    def trim(self, row: int, length: int) -> None:
        """Keeps the first tokens of a row alone."""
        self.lengths[row] = length
        self.held[row] = length

    def reach(self, row: int) -> int:
        """The number of positions that the last token of a row attended to."""
        return min(self.lengths[row], self.shape.window or self.lengths[row])

    @property
    @abstractmethod
    def n_bytes(self) -> int:
        """The bytes of all keys and values that it has room for."""

    @abstractmethod
    def write(self, layer: int, at: "Pass", k: Tensor, v: Tensor) -> None:
        """Puts new keys and values, (rows, kv_heads, n, head_dim), into their slots."""

    @abstractmethod
    def read(self, layer: int, at: "Pass") -> tuple[Tensor, Tensor]:
        """The keys and values in all slots of the pass, (rows, kv_heads, slots, head_dim)."""

    def attend(self, layer: int, at: "Pass", q: Tensor) -> Tensor:
        """Attention to the layer by the kernel: (rows, heads, n, head_dim) → the same shape."""
        raise NotImplementedError

    @abstractmethod
    def slots(self, at: "Pass") -> Tensor:
        """The position that each slot holds after the pass, broadcast to (rows, slots)."""

    def _take_known(self, row: int, ids: Sequence[int]) -> int:  # noqa: ARG002 (none, in most)
        """Takes into an empty row the first of these tokens whose keys and values are there; how many."""
        return 0

    def _make_room(self, rows: slice, n: int) -> None:  # noqa: B027 (most have it already)
        """Gets ready for n more tokens in these rows."""


class PassLayer(NamedTuple):
    """One layer of a pass, as `cache.KeptLayer`."""

    at: "Pass"
    number: int

    def extend(self, k: Tensor, v: Tensor, *, window: int | None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """See `cache.KeptLayer`. The kernel reads the cache itself."""
        cache = self.at.cache
        cache.write(self.number, self.at, k, v)
        if self.at.is_first or self.at.by_kernel:
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
            return attention(q, k, v, window=window, bias=bias)
        if self.at.by_kernel:
            return self.at.cache.attend(self.number, self.at, q)
        return attention(q, k, v, window=None, bias=bias)


class Pass:
    """n new tokens of some rows, as `cache.Kept`. It is for one call of the decoder."""

    def __init__(self, cache: SequenceCache, rows: slice, n: int) -> None:
        self.cache, self.rows, self.n = cache, rows, n
        self.longest = max(cache.lengths[rows]) + n
        """The tokens of the longest row, the new ones included."""
        self.is_first = self.longest == n
        self.by_kernel = cache.attention == DECODE and not self.is_first and n <= MOST_QUERIES
        self.start: int | Tensor = 0 if self.is_first else cache.held[rows]
        self.own = positions(n, cache.held[rows])
        """The positions of the new tokens, (rows, n)."""
        self.ends = cache.held[rows] + n
        """The tokens of each row, the new ones included."""
        self.layers = [PassLayer(self, number) for number in range(cache.shape.n_layers)]

    def bias(self, n: int, like: Tensor) -> Tensor | None:
        """See `cache.Kept`."""
        shape = self.cache.shape
        if self.is_first:
            return score_bias(shape, n, like)
        if self.by_kernel:
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


class SlottedCache(SequenceCache):
    """A cache with the same number of slots in every row: (n_rows, kv_heads, slots, head_dim) a layer."""

    def __init__(
        self,
        shape: ModelShape,
        *,
        n_rows: int,
        n_slots: int,
        limit: float,
        device: str,
        dtype: torch.dtype,
        **attention: Any,
    ) -> None:
        super().__init__(shape, n_rows=n_rows, limit=limit, device=device, **attention)
        size = (shape.n_layers, n_rows, shape.n_kv_heads, n_slots, shape.head_dim)
        self.keys = torch.zeros(size, device=device, dtype=dtype)
        self.values = torch.zeros(size, device=device, dtype=dtype)

    @property
    def n_bytes(self) -> int:
        return 2 * self.keys.nbytes

    def write(self, layer: int, at: Pass, k: Tensor, v: Tensor) -> None:
        where, kept = self.written(at)
        row = torch.arange(len(where), device=where.device)[:, None]
        for held, new in ((self.keys, k), (self.values, v)):
            held[layer, at.rows][row, :, where] = new[:, :, kept].transpose(1, 2)

    @abstractmethod
    def written(self, at: Pass) -> tuple[Tensor, slice | Tensor]:
        """The slots (rows, m) that a pass writes to, and which m of its n tokens go there."""


class ContiguousCache(SlottedCache):
    """Room for `capacity` tokens in every row; a token's slot is its position."""

    def __init__(self, shape: ModelShape, *, capacity: int, **others: Any) -> None:
        """The others are `SlottedCache`'s: n_rows, device, dtype, attention."""
        super().__init__(shape, n_slots=capacity, limit=capacity, **others)

    def written(self, at: Pass) -> tuple[Tensor, slice | Tensor]:
        return at.own, slice(None)

    def read(self, layer: int, at: Pass) -> tuple[Tensor, Tensor]:
        held = (layer, at.rows, slice(None), slice(0, at.longest))
        return self.keys[held], self.values[held]

    def attend(self, layer: int, at: Pass, q: Tensor) -> Tensor:
        keys, values = self.keys[layer, at.rows], self.values[layer, at.rows]
        return decode_attention(q, keys, values, at.ends, window=self.shape.window)

    def slots(self, at: Pass) -> Tensor:
        return torch.arange(at.longest, device=self.device)[None]


class QuantizedCache(ContiguousCache):
    """A contiguous cache of one byte an element, int8 or float8_e4m3fn, with a scale for each key and each
    value of a head. A prompt attends to itself before it is stored; later tokens to what is stored."""

    def __init__(
        self, shape: ModelShape, *, stored: torch.dtype, dtype: torch.dtype, **others: Any
    ) -> None:
        """
        Args:
            stored: a key of `kernels.ops.decode_attention.reference.LARGEST`.
            dtype: of the elements that are read.
        """
        super().__init__(shape, dtype=stored, **others)
        self.dtype = dtype
        size = (2, *self.keys.shape[:-1])
        self.scales = torch.zeros(size, device=self.device, dtype=torch.float32)
        """Those of keys, then those of values: (2, layers, n_rows, kv_heads, capacity)."""

    @property
    def n_bytes(self) -> int:
        return super().n_bytes + self.scales.nbytes

    def write(self, layer: int, at: Pass, k: Tensor, v: Tensor) -> None:
        stored = [quantized(each, self.keys.dtype) for each in (k, v)]
        super().write(layer, at, *(each for each, _ in stored))
        row = torch.arange(len(at.own), device=at.own.device)[:, None]
        for scales, (_, new) in zip(self.scales, stored, strict=True):
            scales[layer, at.rows][row, :, at.own] = new.transpose(1, 2)

    def read(self, layer: int, at: Pass) -> tuple[Tensor, Tensor]:
        keys, values = super().read(layer, at)
        scales = self.scales[:, layer, at.rows, :, : at.longest]
        k, v = (
            dequantized(each, scale, self.dtype)
            for each, scale in zip((keys, values), scales, strict=True)
        )
        return k, v

    def attend(self, layer: int, at: Pass, q: Tensor) -> Tensor:
        k_scale, v_scale = self.scales[:, layer, at.rows]
        return decode_attention(
            q,
            self.keys[layer, at.rows],
            self.values[layer, at.rows],
            at.ends,
            window=self.shape.window,
            k_scale=k_scale,
            v_scale=v_scale,
        )


class SlidingCache(SlottedCache):
    """The last `n_recent` tokens of every row, itself included, in a ring; and the first `n_sinks`.

    Without sinks it is exact for a model whose window is at most `n_recent`. With sinks it is
    StreamingLLM (Xiao et al. 2024): a model without a window goes on beyond its length, for its first
    tokens stay, and positions are counted within the cache. Here a token keeps the position at which it
    was rotated, and instead the few sinks are turned forward by the number of dropped tokens, which gives
    the same distances. A prompt is attended to in full, and then dropped to what is kept.

    The slots of a row: the sinks as they are seen, the sinks as they were written, the ring.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        n_rows: int,
        n_recent: int,
        n_sinks: int = 0,
        device: str,
        dtype: torch.dtype,
    ) -> None:
        """
        Raises:
            PeakwardError: sinks for a model with a window, or with other positions than RoPE.
        """
        if n_sinks and (shape.window is not None or shape.positions != "rope"):
            has = f"positions {shape.positions}" if shape.window is None else "a window"
            raise PeakwardError(
                f"expected a model of RoPE without a window for a cache with attention sinks, got "
                f"{shape.name} with {has}: take a cache without sinks"
            )
        self.n_recent, self.n_sinks = n_recent, n_sinks
        n_slots = 2 * n_sinks + n_recent
        super().__init__(
            shape, n_rows=n_rows, n_slots=n_slots, limit=inf, device=device, dtype=dtype
        )

    def reach(self, row: int) -> int:
        return min(super().reach(row), self.n_sinks + self.n_recent)

    def written(self, at: Pass) -> tuple[Tensor, slice | Tensor]:
        if at.n > 1 and not at.is_first:
            raise ValueError(f"expected one token behind others in a ring, got {at.n}")
        sinks, recent = self.n_sinks, self.n_recent
        kept: slice | Tensor = slice(None)
        if at.n > sinks + recent:
            last = range(at.n - recent, at.n)
            kept = torch.tensor([*range(sinks), *last], device=self.device)
        own = at.own[:, kept]
        return torch.where(own < sinks, sinks + own, 2 * sinks + (own - sinks) % recent), kept

    def read(self, layer: int, at: Pass) -> tuple[Tensor, Tensor]:
        n, keys, values = self.n_sinks, self.keys[layer, at.rows], self.values[layer, at.rows]
        if n:
            dropped = (at.own[:, 0] + 1 - n - self.n_recent).clamp(min=0)
            cos, sin = rotation(self.shape, 1, keys, dropped)
            keys[:, :, :n] = rotate(keys[:, :, n : 2 * n], cos, sin)
            values[:, :, :n] = values[:, :, n : 2 * n]
        return keys, values

    def slots(self, at: Pass) -> Tensor:
        n, last = self.n_sinks, at.own[:, -1:]
        seen = torch.arange(n, device=self.device).expand(len(last), n)
        of_ring = torch.arange(self.n_recent, device=self.device)
        held = last - (last - n - of_ring) % self.n_recent
        recent = held.masked_fill(held < n, EMPTY)
        return torch.cat((seen, torch.full_like(seen, EMPTY), recent), dim=1)
