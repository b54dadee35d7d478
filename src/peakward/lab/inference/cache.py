"""The key-value cache of the passes `prefill` and `decode`: static and contiguous, all rows at one length.

`Kept` is what the decoder asks of any cache. The caches of generation, whose rows have lengths of their own,
are in `sequences` and `paged`.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from peakward.kernels.ops.attention.api import AttentionFn
from peakward.kernels.ops.attention.mask import first_in_reach
from peakward.lab.models.decoder import INITIAL_DEVIATION, score_bias
from peakward.records.model_shape import ModelShape


class KeptLayer(Protocol):
    """The keys and values that a cache holds of one layer."""

    def extend(self, k: Tensor, v: Tensor, *, window: int | None) -> tuple[Tensor, Tensor]:
        """Writes k and v (batch, kv_heads, n, head_dim) behind those held.

        Returns:
            The keys and values that `attend` is given.
        """

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
        """Attends from q (batch, heads, n, head_dim) to all that it may see, by the implementation
        `attention`; k and v are those of `extend`.

        Returns:
            (batch, heads, n, head_dim).
        """


class Kept(Protocol):
    """A cache as `decoder.Decoder` sees it in one pass over new tokens."""

    @property
    def start(self) -> int | Tensor:
        """The position of the first new token: of all rows, or (batch,) of each."""

    @property
    def layers(self) -> Sequence[KeptLayer]:
        """One for each block."""

    def bias(self, n: int, like: Tensor) -> Tensor | None:
        """Terms that are added to the scores of n new tokens, or None.

        Broadcast to (batch, heads, n, keys), in at least fp32; minus infinity where a key is not seen.
        """


class LayerCache(nn.Module):
    """Keys and values of one layer, each (batch, kv_heads, capacity, head_dim).

    It is a module with both as its buffers, because torch.compile assumes that a buffer stays in its
    place. It makes no CUDA graphs of a step that writes to any other tensor.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("keys", keys, persistent=False)
        self.register_buffer("values", values, persistent=False)
        self.length = 0

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
        """See `KeptLayer`."""
        return attention(q, k, v, window=window, bias=bias)

    def extend(self, k: Tensor, v: Tensor, *, window: int | None) -> tuple[Tensor, Tensor]:
        """Writes k and v (batch, kv_heads, n, head_dim) behind the tokens held, whose number stays.

        Returns:
            The keys and values that attention needs. For an empty cache these are the new ones as they
            are; for one token behind others, views of the cache with those in its reach, itself the
            last.

        Raises:
            ValueError: several tokens behind others, for which attention here has no mask.
        """
        start, end = self.length, self.length + k.shape[2]
        if start and k.shape[2] > 1:
            raise ValueError(f"expected one token behind the {start} held, got {k.shape[2]}")
        self.keys[:, :, start:end].copy_(k)
        self.values[:, :, start:end].copy_(v)
        if start == 0:
            return k, v
        first = first_in_reach(start, window)
        return self.keys[:, :, first:end], self.values[:, :, first:end]


class KVCache(nn.Module):
    """Keys and values of the reference decoder, one `LayerCache` a block."""

    layers: Sequence[LayerCache]

    def __init__(
        self,
        shape: ModelShape,
        *,
        batch_size: int,
        capacity: int,
        device: str,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.shape, self.device = shape, device
        size = (batch_size, shape.n_kv_heads, capacity, shape.head_dim)

        def empty() -> Tensor:
            return torch.zeros(size, device=device, dtype=dtype)

        layers = nn.ModuleList(LayerCache(empty(), empty()) for _ in range(shape.n_layers))
        self.layers = layers  # type: ignore[assignment]

    @property
    def length(self) -> int:
        """The number of tokens held of each sequence: 0 to capacity."""
        return self.layers[0].length

    @length.setter
    def length(self, length: int) -> None:
        for layer in self.layers:
            layer.length = length

    @property
    def start(self) -> int:
        """See `Kept`."""
        return self.length

    def bias(self, n: int, like: Tensor) -> Tensor | None:
        """See `Kept`."""
        return score_bias(self.shape, n, like, self.length)

    def fill(self, length: int, *, seed: int) -> None:
        """Fills the cache with `length` tokens of random keys and values.

        They are normal, with the deviation that initialised projections give: the norm before these
        leaves elements of mean square 1. They are drawn in fp32, one sequence of a layer at a time, and
        then cast, so equal seeds fill caches of every dtype alike.
        """
        deviation = INITIAL_DEVIATION * math.sqrt(self.shape.d_model)
        generator = torch.Generator(self.device).manual_seed(seed)
        for held in self.buffers():
            for sequence in held[:, :, :length].unbind(0):
                drawn = torch.randn(sequence.shape, generator=generator, device=self.device)
                sequence.copy_(drawn.mul_(deviation))
                del drawn  # Else it would stay in memory beside the next one.
        self.length = length
