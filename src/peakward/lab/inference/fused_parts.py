"""Parts of a fused step: the model's weights as its kernels take them, and attention with its room."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from peakward.kernels.ops.decode_step.triton import launch as kernels
from peakward.kernels.ops.decode_step.triton.launch import Held, Matrix, Then
from peakward.kernels.ops.decode_step.triton.settings import Split
from peakward.lab.models.decoder import Block, Decoder, FeedForward
from peakward.lab.models.layers import QuantisedLinear
from peakward.records.model_shape import ModelShape


class Layer(NamedTuple):
    """One layer's weights, and the keys and values that it holds."""

    attention_gain: Tensor
    qkv: Matrix
    qkv_bias: Tensor | None
    out: Matrix
    ff_gain: Tensor
    up: Matrix
    down: Matrix
    held: Held


class Weights(NamedTuple):
    """A model's weights, and its cache."""

    table: Tensor
    layers: list[Layer]
    gain: Tensor
    """The gain of the norm before the output layer."""
    head: Matrix
    eps: float


def weights_of(model: Decoder, held: Sequence[Held]) -> Weights:
    """The weights of a model that the kernels compute, without copies."""
    readout = model.readout
    return Weights(
        table=model.embedding.weight,
        layers=[
            _layer(block, each)  # type: ignore[arg-type]
            for block, each in zip(model.blocks, held, strict=True)
        ],
        gain=_gain(readout.norm),
        head=_matrix(readout.head),
        eps=model.shape.norm_eps,
    )


class Attention:
    """Attention of a step's rows to the cache, with the room that it needs."""

    def __init__(self, m: int, shape: ModelShape, held: Held, like: Tensor, split: Split) -> None:
        """
        Args:
            m: rows of activations.
            held: of a layer.
            like: of their type and device.
        """
        head_dim, n_pairs = shape.head_dim, held.n_sequences * held.kv_heads
        pieces = (n_pairs, split.splits, m * shape.n_heads // n_pairs)
        self._split = split
        self.mixed = like.new_empty(m, shape.n_heads, head_dim)
        """Values mixed for the queries."""
        n_behind = 0 if held.k_scale is None else 2 * held.kv_heads
        self.q = like.new_empty(m, shape.n_heads + n_behind, head_dim)
        """The queries, see `launch.attention`."""
        self._parts = torch.empty(*pieces, head_dim, device=like.device)
        self._shares = torch.empty(*pieces, 2, device=like.device)
        self._arrived = torch.zeros(n_pairs, dtype=torch.int32, device=like.device)

    def __call__(self, layer: Layer, position: Tensor, then: Then) -> Tensor:
        """Values mixed for the queries, (rows, heads · head_dim)."""
        kernels.attention(
            self.q,
            layer.held,
            position,
            self._parts,
            self._shares,
            self._arrived,
            self.mixed,
            then=then,
            split=self._split,
        )
        return self.mixed.flatten(1)


def _layer(block: Block, held: Held) -> Layer:
    attention, ff = block.attention, block.ff
    assert isinstance(ff, FeedForward)
    return Layer(
        attention_gain=_gain(block.attention_norm),
        qkv=_matrix(attention.qkv),
        qkv_bias=attention.qkv.bias,
        out=_matrix(attention.out),
        ff_gain=_gain(block.ff_norm),
        up=_matrix(ff.up),
        down=_matrix(ff.down),
        held=held,
    )


def _gain(norm: nn.Module) -> Tensor:
    assert isinstance(norm.weight, Tensor)
    return norm.weight


def _matrix(linear: nn.Linear) -> Matrix:
    if isinstance(linear, QuantisedLinear):
        return Matrix(linear.stored, linear.scale, linear.out_features, linear.in_features)
    return Matrix(linear.weight, None, linear.out_features, linear.in_features)
