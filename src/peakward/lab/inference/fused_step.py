"""One step of decode in five kernels a layer, each launched while the one before it still runs.

They are: norm, projection, rotation and the write to the cache; attention with its join; output projection
and residual; norm, gate and up, and their product; down projection and residual. The embedding comes before
them, the last norm and the head behind. `kernels.ops.decode_step` has the kernels and says why their order is
safe.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from peakward.kernels.ops.decode_step.triton import launch as kernels
from peakward.kernels.ops.decode_step.triton.launch import Matrix, Then, first_of
from peakward.kernels.ops.decode_step.triton.settings import (
    Cut,
    Split,
    cut_for,
    split_for,
)
from peakward.lab.inference.passes import Pass
from peakward.lab.inference.sequences import ContiguousCache
from peakward.lab.models.decoder import Block, Decoder, FeedForward, rotation
from peakward.lab.models.layers import KINDS, QuantisedLinear
from peakward.levers.decode_step import model_obstacle
from peakward.records.case import StoredWeights
from peakward.records.errors import PeakwardError


class _Layer(NamedTuple):
    attention_gain: Tensor
    qkv: Matrix
    qkv_bias: Tensor | None
    out: Matrix
    ff_gain: Tensor
    up: Matrix
    down: Matrix
    keys: Tensor
    values: Tensor


class Cuts(NamedTuple):
    """How each kernel of a step is cut up."""

    qkv: Cut
    out: Cut
    up: Cut
    down: Cut
    head: Cut
    attention: Split
    then_bytes: int = 4 << 20
    """Bytes of the next matrix, brought into the L2 behind the last of a kernel's own."""


class FusedStep:
    """Steps of a decoder for the one row of a cache, a new token each.

    Args:
        model: of RMSNorm, RoPE and SwiGLU, without biases but qkv's.
        keys, values: of each layer (1, kv_heads, capacity, head_dim).

    Raises:
        PeakwardError: a model that the kernels do not compute, or a cache of several rows or of another type
            than the model's.
    """

    def __init__(
        self,
        model: Decoder,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        cuts: Cuts | None = None,
    ) -> None:
        shape, table = model.shape, model.embedding.weight
        _refuse(model, keys[0])
        m, kv_heads, capacity, head_dim = keys[0].shape
        self._model, self._eps = model, shape.norm_eps
        self._layers = [
            _layer(block, *each)  # type: ignore[arg-type]
            for block, *each in zip(model.blocks, keys, values, strict=True)
        ]
        self._head = _matrix(model.readout.head)
        # In Triton's interpreter each program more costs time alone.
        self._multiprocessors = 2
        if table.is_cuda:
            properties = torch.cuda.get_device_properties(table.device)
            self._multiprocessors = properties.multi_processor_count
        layer = self._layers[0]
        self.cuts = cuts or Cuts(
            qkv=_cut(layer.qkv),
            out=_cut(layer.out),
            up=_cut(layer.up),
            down=_cut(layer.down),
            head=_cut(self._head),
            attention=split_for(
                n_pairs=m * kv_heads, capacity=capacity, n_multiprocessors=self._multiprocessors
            ),
        )
        self._cos, self._sin = rotation(shape, capacity, table)
        self._then = self._what_comes_then()
        splits, group = self.cuts.attention.splits, shape.n_heads // kv_heads
        self._x, self._q = (
            table.new_empty(m, shape.d_model),
            table.new_empty(m, shape.n_heads, head_dim),
        )
        self._mixed, self._gated = torch.empty_like(self._q), table.new_empty(m, shape.d_ff)
        pieces = (m * kv_heads, splits, group)
        self._parts = torch.empty(*pieces, head_dim, device=table.device)
        self._shares = torch.empty(*pieces, 2, device=table.device)
        self._arrived = torch.zeros(m * kv_heads, dtype=torch.int32, device=table.device)

    def __call__(self, ids: Tensor, position: Tensor) -> Tensor:
        """Takes ids (1,) as the token at `position` (1,), both on the device: the logits behind it,
        (1, vocab)."""
        cuts, x, eps = self.cuts, self._x, self._eps
        kernels.embedded(ids, self._model.embedding.weight, x)
        for layer, (out, up, down, qkv) in zip(self._layers, self._then, strict=True):
            kernels.rotated(
                x,
                layer.attention_gain,
                eps,
                layer.qkv,
                layer.qkv_bias,
                self._cos,
                self._sin,
                position,
                self._q,
                layer.keys,
                layer.values,
                cut=cuts.qkv,
                n_programs=self._programs(cuts.qkv),
            )
            kernels.attention(
                self._q,
                layer.keys,
                layer.values,
                position,
                self._parts,
                self._shares,
                self._arrived,
                self._mixed,
                then=out,
                split=cuts.attention,
            )
            mixed = self._mixed.flatten(1)
            self._product(mixed, None, layer.out, x, adds=True, then=up, cut=cuts.out)
            kernels.gated(
                x,
                layer.ff_gain,
                eps,
                layer.up,
                self._gated,
                then=down,
                cut=cuts.up,
                n_programs=self._programs(cuts.up),
            )
            self._product(self._gated, None, layer.down, x, adds=True, then=qkv, cut=cuts.down)
        gain, nothing = _gain(self._model.readout.norm), first_of(self._head, 0)
        logits = x.new_empty(len(x), self._head.n)
        self._product(x, gain, self._head, logits, adds=False, then=nothing, cut=cuts.head)
        return logits

    def _what_comes_then(self) -> list[tuple[Then, Then, Then, Then]]:
        """The matrices behind attention, the output projection, gate and up, and down of each layer."""
        n_bytes, layers = self.cuts.then_bytes, self._layers
        behind = [*(each.qkv for each in layers[1:]), self._head]
        return [
            (
                first_of(layer.out, n_bytes),
                first_of(layer.up, n_bytes, halves=True),
                first_of(layer.down, n_bytes),
                first_of(qkv, n_bytes),
            )
            for layer, qkv in zip(layers, behind, strict=True)
        ]

    def _product(
        self,
        x: Tensor,
        gain: Tensor | None,
        matrix: Matrix,
        out: Tensor,
        *,
        adds: bool,
        then: Then,
        cut: Cut,
    ) -> None:
        programs = self._programs(cut)
        kernels.product(
            x, gain, self._eps, matrix, out, adds=adds, then=then, cut=cut, n_programs=programs
        )

    def _programs(self, cut: Cut) -> int:
        return cut.programs * self._multiprocessors


class FusedDecoder(nn.Module):
    """A decoder of which a pass of one token behind those of a cache is a fused step; prompts, and passes of
    several tokens, go through its modules. It is called as the decoder is, and is for one cache.

    The step reads its position on the device, so that one captured step serves every length.

    Args:
        model: as `FusedStep`.
        cache: of one row.

    Raises:
        PeakwardError: as `FusedStep`.
    """

    def __init__(self, model: Decoder, cache: ContiguousCache) -> None:
        super().__init__()
        self.model, self._cache = model, cache
        self._step = FusedStep(model, list(cache.keys), list(cache.values))

    def forward(self, ids: Tensor, cache: Pass, n_logits: int = 1) -> Tensor:
        """As `Decoder.forward` with a pass of this object's cache: the logits (1, n_logits, vocab)."""
        if cache.is_first or cache.n > 1:
            logits: Tensor = self.model(ids, cache=cache, n_logits=n_logits)
            return logits
        return self._step(ids[:, 0], self._cache.held)[:, None]


def _refuse(model: Decoder, keys: Tensor) -> None:
    dtype = model.embedding.weight.dtype
    reason = model_obstacle(model.shape, _stored(model))
    if reason is not None:
        raise PeakwardError(f"expected a model that the kernels compute: {reason}")
    if len(keys) != 1:
        raise PeakwardError(f"expected a cache of one row, got {len(keys)}: take separate kernels")
    if keys.dtype != dtype or not keys.is_contiguous():
        raise PeakwardError(
            f"expected keys and values in {dtype}, the model's type, without gaps, got {keys.dtype}: take a "
            "ContiguousCache of that type"
        )


def _stored(model: Decoder) -> StoredWeights:
    """The form of the blocks' weights."""
    block = model.blocks[0]
    assert isinstance(block, Block)
    linear = block.attention.qkv
    return next((name for name, kind in KINDS.items() if type(linear) is kind), "dense")


def _layer(block: Block, keys: Tensor, values: Tensor) -> _Layer:
    attention, ff = block.attention, block.ff
    assert isinstance(ff, FeedForward)
    return _Layer(
        attention_gain=_gain(block.attention_norm),
        qkv=_matrix(attention.qkv),
        qkv_bias=attention.qkv.bias,
        out=_matrix(attention.out),
        ff_gain=_gain(block.ff_norm),
        up=_matrix(ff.up),
        down=_matrix(ff.down),
        keys=keys,
        values=values,
    )


def _gain(norm: nn.Module) -> Tensor:
    assert isinstance(norm.weight, Tensor)
    return norm.weight


def _matrix(linear: nn.Linear) -> Matrix:
    if isinstance(linear, QuantisedLinear):
        return Matrix(linear.stored, linear.scale, linear.out_features, linear.in_features)
    return Matrix(linear.weight, None, linear.out_features, linear.in_features)


def _cut(matrix: Matrix) -> Cut:
    return cut_for(n=matrix.n, k=matrix.k, per_word=matrix.per_word)
