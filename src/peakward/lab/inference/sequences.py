"""Caches of generation: sequences of any lengths, one a row, in the form that serves them.

A prompt goes into its row alone (`prefill`), so that no padding is computed; then all rows go on together,
each at its own position (`advance`). A row that is released takes the next prompt. Lengths are known to the
host, and beside that kept on the device, so that a step waits for nothing and can be captured.

`ContiguousCache` has room for the longest sequence in every row, `SlidingCache` has a ring of the last tokens
and may keep the first ones too, `heavy_hitters.HeavyHitterCache` keeps what was attended to most,
`paged.PagedCache` holds pages that rows share. In fewer bits (`storage.empty`) a prompt attends to itself
before it is stored, and later tokens to what is stored.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf
from typing import Any, ClassVar, Literal, Protocol, cast

import torch
from torch import Tensor, nn

from peakward.kernels.ops.attention.own import DECODE
from peakward.kernels.ops.attention.sdpa import unplanned
from peakward.kernels.ops.decode_attention.api import MOST_QUERIES, decode_attention
from peakward.kernels.ops.rotation.api import rotate
from peakward.lab.inference.passes import EMPTY, Pass, sent
from peakward.lab.inference.storage import empty
from peakward.lab.models.decoder import rotation
from peakward.records import check
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape

OF_THE_MODULE = "of the module"
"""The positions of a model that another library computes: those that it takes are all that is known."""
LIMITED = ("learned", OF_THE_MODULE)
MOST_SLOTS = 2**31
"""The largest size that a cache may be asked for: larger ones have no room in any memory."""
LEAST_SPAN = 64
"""The fewest slots that a captured step reads, unless the kernel reads those that are held alone."""


class KeptShape(Protocol):
    """The sizes of a model that a cache must know: a `ModelShape` or a `TransformersShape`."""

    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def n_layers(self) -> int: ...
    @property
    def n_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def max_seq_len(self) -> float: ...
    @property
    def positions(self) -> str: ...
    @property
    def window(self) -> int | None: ...
    @property
    def windows(self) -> tuple[int | None, ...]: ...


class SequenceCache(ABC):
    """Keys and values of `n_rows` sequences; `lengths` are those held."""

    keeps_all: ClassVar[bool] = True
    """Whether each token stays until its row is trimmed, so that it can take several tokens back."""

    def __init__(
        self,
        shape: KeptShape,
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
        self.limit = min(limit, shape.max_seq_len) if shape.positions in LIMITED else limit
        self.lengths = [0] * n_rows
        self.held = torch.zeros(n_rows, dtype=torch.int64, device=device)
        """The lengths again, on the device."""

    def prefill(self, model: nn.Module, row: int, ids: Sequence[int]) -> Tensor:
        """Takes a prompt into an empty row: the logits behind its last token, (1, vocab).

        Raises:
            PeakwardError: the prompt is empty, has a token that the model does not know, or is longer than
                the cache has room for; the row is then empty again.
        """
        self.expect_prompt(ids)
        if self.lengths[row]:
            raise ValueError(f"expected an empty row, got {self.lengths[row]} tokens in row {row}")
        try:
            n_known = self._take_known(row, ids)
            rest = sent([ids[n_known:]], torch.int64, self.device)
            return self.logits(model, rest, slice(row, row + 1))
        except PeakwardError:
            self.release(row)
            raise

    def expect_prompt(self, ids: Sequence[int]) -> None:
        """
        Raises:
            PeakwardError: the prompt is empty, or has a token that the model does not know.
        """
        if not ids:
            raise PeakwardError(
                "expected a prompt of at least one token, got an empty one: give some text"
            )
        if not 0 <= min(ids) <= max(ids) < self.shape.vocab_size:
            raise PeakwardError(
                f"expected tokens from 0 to {self.shape.vocab_size - 1:,}, got "
                f"{min(ids) if min(ids) < 0 else max(ids):,}: take the tokenizer of {self.shape.name}"
            )

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
        self._take_room(rows, n)
        with unplanned():
            found: Tensor = model(ids, cache=Pass(self, rows, n), n_logits=n_logits)
        self.lengths[rows] = [length + n for length in self.lengths[rows]]
        self.held[rows] += n
        return found

    def advance(self, model: nn.Module, ids: Tensor, active: Tensor, longest: int) -> Tensor:
        """Takes the next token of every row, (n_rows, 1): the logits behind them, (n_rows, vocab). Rows that
        are not `active` (n_rows,) stay as long as they are. Otherwise as `score`."""
        found = self.score(model, ids, active, longest)[:, -1]
        self.held += active
        return found

    def score(self, model: nn.Module, ids: Tensor, active: Tensor, longest: int) -> Tensor:
        """The logits behind each of ids (n_rows, n), which are written behind what rows hold: (n_rows, n,
        vocab). What rows hold stays, so that the caller takes what it wants of them.

        What it does depends on no length but `longest`: it can be captured, and replayed while no row
        has more tokens, the new ones included. `reserve` has made room, and the caller keeps `lengths`.
        The slots behind an inactive row are written to as well, so that there must be some.
        """
        n = ids.shape[1]
        at = Pass(self, slice(0, len(self.lengths)), n, max(n + 1, longest), active)
        found: Tensor = model(ids, cache=at, n_logits=n)
        return found

    def span(self, longest: int, n: int = 1) -> int:
        """The `longest` for which a step of n tokens is captured that serves rows of up to this many."""
        if self.limit == inf or self.attends(n):
            return n + 1  # A captured step reads what is held, or a whole ring.
        return min(int(self.limit), max(LEAST_SPAN, 1 << (longest - 1).bit_length()))

    def fits(self, ids: Sequence[int], n: int) -> bool:
        """Whether there is room now for these tokens and n more, in an empty row.

        Raises:
            PeakwardError: there never is.
        """
        if (longest := len(ids) + n) > self.limit:
            raise self._too_long(longest, f"{len(ids):,} and {n:,} to come")
        return True

    def reserve(self, row: int, n: int) -> None:
        """Gets ready for n more tokens in a row, so that its steps ask for nothing.

        Raises:
            PeakwardError: they are more than the cache has room for.
        """
        self._take_room(slice(row, row + 1), n)

    def release(self, row: int) -> None:
        """Empties a row."""
        self.trim(row, 0)

    def trim(self, row: int, length: int) -> None:
        """Keeps the first tokens of a row alone."""
        self.lengths[row] = length
        self.held[row] = length

    def reach(self, length: int) -> float:
        """The number of positions that the last of so many tokens attends to: the mean over layers."""
        windows = self.shape.windows
        return sum(min(length, each or length) for each in windows) / len(windows)

    @property
    @abstractmethod
    def n_bytes(self) -> int:
        """The bytes of all keys and values that it has room for."""

    @abstractmethod
    def write(self, layer: int, at: Pass, k: Tensor, v: Tensor) -> None:
        """Puts new keys and values, (rows, kv_heads, n, head_dim), into their slots."""

    def read(self, layer: int, at: Pass) -> tuple[Tensor, Tensor]:
        """The keys and values in all slots of the pass, (rows, kv_heads, slots, head_dim), for the model to
        attend to."""
        raise NotImplementedError

    def attends(self, n: int) -> bool:
        """Whether the cache itself attends from n new tokens to those held; else the model does."""
        return self.attention == DECODE and n <= MOST_QUERIES

    def attend(self, layer: int, at: Pass, q: Tensor) -> Tensor:
        """Attention to the layer by the cache: (rows, heads, n, head_dim) → the same shape."""
        raise NotImplementedError

    def prompted(self, layer: int, at: Pass, q: Tensor, k: Tensor, v: Tensor) -> None:  # noqa: B027
        """Sees how the tokens of empty rows attend to one another: q (rows, heads, n, head_dim), k and v
        (rows, kv_heads, n, head_dim). `write` was called before."""

    def slots(self, at: Pass) -> Tensor:
        """The position that each slot holds after the pass, broadcast to (rows, slots), for the model to
        attend to."""
        raise NotImplementedError

    def _take_known(self, row: int, ids: Sequence[int]) -> int:  # noqa: ARG002 (none, in most)
        """Takes into an empty row the first of these tokens whose keys and values are there; how many."""
        return 0

    def _take_room(self, rows: slice, n: int) -> None:
        if (longest := max(self.lengths[rows]) + n) > self.limit:
            raise self._too_long(longest, f"one of {longest:,}")
        self._make_room(rows, n)

    def _too_long(self, longest: int, got: str) -> PeakwardError:
        """The refusal of so many tokens, which says whether a larger cache would help."""
        most = self.shape.max_seq_len if self.shape.positions in LIMITED else inf
        limit, advice = f"{self.limit:,} tokens", f"make a cache for {longest:,}"
        if longest > most:
            limit, advice = f"{most:,} tokens, which {self.shape.name} takes", "shorten the prompt"
        return PeakwardError(
            f"expected sequences of at most {limit}, got {got}: {advice}, or ask for fewer tokens"
        )

    def _make_room(self, rows: slice, n: int) -> None:  # noqa: B027 (most have it already)
        """Gets ready for n more tokens in these rows."""


class SlottedCache(SequenceCache):
    """A cache with the same number of slots in every row: (n_rows, kv_heads, slots, head_dim) a layer."""

    def __init__(
        self,
        shape: KeptShape,
        *,
        n_rows: int,
        n_slots: int,
        limit: float,
        device: str,
        dtype: torch.dtype,
        stored: torch.dtype | None = None,
        **attention: Any,
    ) -> None:
        """
        Args:
            dtype: of the elements that are read.
            stored: how they are held, see `storage.empty`; None: as `dtype`.

        Raises:
            PeakwardError: as `storage.empty`.
        """
        super().__init__(shape, n_rows=n_rows, limit=limit, device=device, **attention)
        size = (shape.n_layers, n_rows, shape.n_kv_heads, n_slots)
        self.dtype = dtype
        self.storage = empty(size, shape.head_dim, dtype=dtype, stored=stored, device=device)

    @property
    def n_bytes(self) -> int:
        return self.storage.n_bytes

    def write(self, layer: int, at: Pass, k: Tensor, v: Tensor) -> None:
        slots, kept = self.written(at)
        self.storage.at(layer, at.rows).write(k[:, :, kept], v[:, :, kept], slots)

    @abstractmethod
    def written(self, at: Pass) -> tuple[Tensor, slice | Tensor]:
        """The slots (rows, m) that a pass writes to, and which m of its n tokens go there."""


class ContiguousCache(SlottedCache):
    """Room for `capacity` tokens in every row; a token's slot is its position."""

    def __init__(self, shape: KeptShape, *, capacity: int, **others: Any) -> None:
        """The others are `SlottedCache`'s: n_rows, device, dtype, stored, attention."""
        super().__init__(shape, n_slots=capacity, limit=capacity, **others)

    def written(self, at: Pass) -> tuple[Tensor, slice | Tensor]:
        return at.own, slice(None)

    def read(self, layer: int, at: Pass) -> tuple[Tensor, Tensor]:
        held = self.storage.at(layer, at.rows, slice(None), slice(0, at.longest))
        return held.widened(self.dtype)

    def attend(self, layer: int, at: Pass, q: Tensor) -> Tensor:
        keys, values, k_scale, v_scale = self.storage.at(layer, at.rows)
        return decode_attention(
            q,
            keys,
            values,
            at.ends,
            window=self.shape.window,
            k_scale=k_scale,
            v_scale=v_scale,
        )

    def slots(self, at: Pass) -> Tensor:
        return torch.arange(at.longest, device=self.device)[None]


class SlidingCache(SlottedCache):
    """The last `n_recent` tokens of every row, itself included, in a ring; and the first `n_sinks` or
    `n_global`.

    Without first tokens it is exact for a model whose window is at most `n_recent`. A model without a window
    can go on with first tokens beyond its length. Sinks are StreamingLLM's (Xiao et al. 2024): positions are
    counted within the cache. Here a token keeps the position at which it was rotated, and instead the few
    sinks are turned forward by the number of dropped tokens, which gives the same distances. Global tokens
    (Beltagy et al. 2020) keep their positions. A prompt is attended to in full, and then dropped to what is
    kept.

    The slots of a row: the sinks as they are seen, the first tokens as they were written, the ring.
    """

    keeps_all = False

    def __init__(
        self,
        shape: KeptShape,
        *,
        n_rows: int,
        n_recent: int,
        n_sinks: int = 0,
        n_global: int = 0,
        device: str,
        dtype: torch.dtype,
    ) -> None:
        """
        Raises:
            PeakwardError: no recent token; first tokens for a model with a window, sinks for one with other
                positions than RoPE, or both kinds of first tokens.
        """
        check.whole(n_recent, "n_recent", low=1, high=MOST_SLOTS)
        check.whole(n_sinks, "n_sinks", low=0, high=MOST_SLOTS)
        check.whole(n_global, "n_global", low=0, high=MOST_SLOTS)
        if n_sinks and n_global:
            raise PeakwardError(
                f"expected attention sinks or global tokens, got {n_sinks} and {n_global}: take one kind"
            )
        if n_sinks and (shape.window is not None or shape.positions != "rope"):
            has = f"positions {shape.positions}" if shape.window is None else "a window"
            raise PeakwardError(
                f"expected a model of RoPE without a window for a cache with attention sinks, got "
                f"{shape.name} with {has}: take a cache without sinks"
            )
        if n_global and shape.window is not None:
            raise PeakwardError(
                f"expected a model without a window for a cache with global tokens, got {shape.name} with "
                f"one of {shape.window}: take a cache without them"
            )
        self.n_recent, self.n_sinks, self.n_first = n_recent, n_sinks, n_sinks + n_global
        n_slots = n_sinks + self.n_first + n_recent
        super().__init__(
            shape, n_rows=n_rows, n_slots=n_slots, limit=inf, device=device, dtype=dtype
        )

    def reach(self, length: int) -> float:
        return min(super().reach(length), self.n_first + self.n_recent)

    def written(self, at: Pass) -> tuple[Tensor, slice | Tensor]:
        if at.n > 1 and not at.is_first:
            raise ValueError(f"expected one token behind others in a ring, got {at.n}")
        first, recent = self.n_first, self.n_recent
        kept: slice | Tensor = slice(None)
        if at.n > first + recent:
            last = range(at.n - recent, at.n)
            kept = torch.tensor([*range(first), *last], device=self.device)
        own = at.own[:, kept]
        return self.n_sinks + torch.where(own < first, own, first + (own - first) % recent), kept

    def read(self, layer: int, at: Pass) -> tuple[Tensor, Tensor]:
        n, held = self.n_sinks, self.storage.at(layer, at.rows)
        keys, values = held.keys, held.values
        if n:
            dropped = (at.own[:, 0] + 1 - n - self.n_recent).clamp(min=0)
            shape = cast(ModelShape, self.shape)  # Of RoPE, as its sinks asked for.
            cos, sin = rotation(shape, 1, keys, dropped)
            keys[:, :, :n] = rotate(keys[:, :, n : 2 * n], cos, sin)
            values[:, :, :n] = values[:, :, n : 2 * n]
        return keys, values

    def slots(self, at: Pass) -> Tensor:
        n, last = self.n_first, at.own[:, -1:]
        first = torch.arange(n, device=self.device).expand(len(last), n)
        # Sinks are seen as they are turned, and not as they were written.
        held = (first, torch.full_like(first, EMPTY)) if self.n_sinks else (first,)
        of_ring = torch.arange(self.n_recent, device=self.device)
        recent = last - (last - n - of_ring) % self.n_recent
        return torch.cat((*held, recent.masked_fill(recent < n, EMPTY)), dim=1)
