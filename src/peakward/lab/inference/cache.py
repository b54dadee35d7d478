"""The key-value cache of the passes `prefill` and `decode`: static and contiguous, all rows at one length.

A layer's elements have the compute type, or a byte each. `Kept` is what the decoder asks of any cache. The
caches of generation, whose rows have lengths of their own, are in `sequences` and `paged`.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from peakward.kernels.ops.attention.api import AttentionFn
from peakward.kernels.ops.attention.mask import first_in_reach
from peakward.kernels.ops.decode_attention.api import decode_attention
from peakward.kernels.ops.decode_attention.reference import dequantized, quantized
from peakward.lab.inference.storage import Storage
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

    @property
    def storage(self) -> Storage:
        """All that it holds."""
        return Storage(self.keys, self.values)

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

    def put(self, k: Tensor, v: Tensor, start: int) -> None:
        """Writes keys and values of all rows to the positions from `start` on."""
        self.put_keys(k, slice(None), start)
        self.put_values(v, slice(None), start)

    def put_keys(self, new: Tensor, rows: slice, start: int) -> None:
        """Writes keys (rows, kv_heads, n, head_dim) to the positions from `start` on."""
        self.keys[rows, :, start : start + new.shape[2]].copy_(new)

    def put_values(self, new: Tensor, rows: slice, start: int) -> None:
        """As `put_keys`, of values."""
        self.values[rows, :, start : start + new.shape[2]].copy_(new)

    def extend(self, k: Tensor, v: Tensor, *, window: int | None) -> tuple[Tensor, Tensor]:
        """Writes k and v (batch, kv_heads, n, head_dim) behind the tokens held, whose number stays.

        Returns:
            The keys and values that attention needs. For an empty cache these are the new ones as they
            are; for one token behind others, views of the cache with those in its reach, itself the
            last.

        Raises:
            ValueError: several tokens behind others, for which attention here has no mask.
        """
        start = self.length
        if start and k.shape[2] > 1:
            raise ValueError(f"expected one token behind the {start} held, got {k.shape[2]}")
        self.put(k, v, start)
        return (k, v) if start == 0 else self.held(first_in_reach(start, window), start + 1)

    def held(self, first: int, end: int) -> tuple[Tensor, Tensor]:
        """The keys and values of the positions from `first` to `end`."""
        return self.keys[:, :, first:end], self.values[:, :, first:end]


class ByteLayerCache(LayerCache):
    """A layer of one byte an element, with a scale for each key and each value of a head.

    A prompt attends to itself before it is stored; a later token to what is stored, itself included: by
    Peakward's kernel, or else to the numbers widened to the compute type.
    """

    scales: Tensor

    def __init__(
        self, keys: Tensor, values: Tensor, *, dtype: torch.dtype, by_kernel: bool
    ) -> None:
        super().__init__(keys, values)
        self.dtype, self.by_kernel = dtype, by_kernel
        scales = torch.zeros((2, *keys.shape[:-1]), device=keys.device, dtype=torch.float32)
        self.register_buffer("scales", scales, persistent=False)
        """Those of keys, then those of values: (2, batch, kv_heads, capacity)."""

    @property
    def storage(self) -> Storage:
        k_scale, v_scale = self.scales
        return Storage(self.keys, self.values, k_scale, v_scale)

    def put(self, k: Tensor, v: Tensor, start: int) -> None:
        """As of `LayerCache`, on a GPU in one launch. By torch's operators a step of `2.7B` behind 1,024
        positions took 5.39 ms in int8 for 4.01 in bf16 (H200)."""
        slots = torch.arange(start, start + k.shape[2], device=k.device).expand(len(k), -1)
        self.storage.write(k, v, slots)

    def put_keys(self, new: Tensor, rows: slice, start: int) -> None:
        super().put_keys(self._in_bytes(0, new, rows, start), rows, start)

    def put_values(self, new: Tensor, rows: slice, start: int) -> None:
        super().put_values(self._in_bytes(1, new, rows, start), rows, start)

    def _in_bytes(self, which: int, new: Tensor, rows: slice, start: int) -> Tensor:
        """The new elements as they are stored, whose scales it writes."""
        stored, scale = quantized(new, self.keys.dtype)
        self.scales[which, rows, :, start : start + new.shape[2]].copy_(scale)
        return stored

    def held(self, first: int, end: int) -> tuple[Tensor, Tensor]:
        keys, values = super().held(first, end)
        if self.by_kernel:
            return keys, values
        k_scale, v_scale = self.scales[..., first:end]
        return dequantized(keys, k_scale, self.dtype), dequantized(values, v_scale, self.dtype)

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
        if self.length == 0 or not self.by_kernel:
            return super().attend(attention, q, k, v, window=window, bias=bias)
        reach = slice(first_in_reach(self.length, window), self.length + 1)
        k_scale, v_scale = self.scales[..., reach]
        return decode_attention(q, k, v, k_scale=k_scale, v_scale=v_scale)


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
        stored: torch.dtype | None = None,
        by_kernel: bool = False,
    ) -> None:
        """
        Args:
            dtype: of the keys and values that attention is given.
            stored: int8 or float8_e4m3fn for a byte an element; None: as `dtype`.
            by_kernel: whether Peakward's kernel reads such bytes; else they are widened before attention.
        """
        super().__init__()
        self.shape, self.device = shape, device
        size = (batch_size, shape.n_kv_heads, capacity, shape.head_dim)

        def empty() -> Tensor:
            return torch.zeros(size, device=device, dtype=stored or dtype)

        def layer() -> LayerCache:
            if stored is None:
                return LayerCache(empty(), empty())
            return ByteLayerCache(empty(), empty(), dtype=dtype, by_kernel=by_kernel)

        layers = nn.ModuleList(layer() for _ in range(shape.n_layers))
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
        batch_size, kv_heads, _, head_dim = self.layers[0].keys.shape
        size = (1, kv_heads, length, head_dim)
        for layer in self.layers:
            for write in (layer.put_keys, layer.put_values):
                for row in range(batch_size):
                    drawn = torch.randn(size, generator=generator, device=self.device)
                    write(drawn.mul_(deviation), slice(row, row + 1), 0)
                    del drawn  # Else it would stay in memory beside the next one.
        self.length = length

    def take(self, other: "KVCache") -> None:
        """Holds the tokens of another cache of the same model, in the type of this one."""
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            keys, values = theirs.held(0, other.length)
            mine.put_keys(keys, slice(None), 0)
            mine.put_values(values, slice(None), 0)
        self.length = other.length
