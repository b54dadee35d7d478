"""The kernels of a fused step in their order, for one row of activations and for several."""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from peakward.kernels.ops.decode_step.triton import launch as kernels
from peakward.kernels.ops.decode_step.triton import launch_several as several
from peakward.kernels.ops.decode_step.triton.launch import Matrix, Then
from peakward.kernels.ops.decode_step.triton.settings import (
    THEN_BYTES,
    Cut,
    RowsCut,
    Split,
    cut_for,
    rows_cut_for,
    split_for,
)
from peakward.lab.inference.fused_parts import Attention, Weights
from peakward.lab.models.decoder import rotation
from peakward.records.model_shape import ModelShape

C = TypeVar("C", Cut, RowsCut)


class Cuts(NamedTuple, Generic[C]):
    """How each kernel of a step is cut up."""

    qkv: C
    out: C
    up: C
    down: C
    head: C
    attention: Split
    then_bytes: int = THEN_BYTES
    """Bytes of the next matrix, brought into the L2 behind the last of a kernel's own."""


class Nexts(NamedTuple):
    """The bytes that are brought into the L2 behind the weights of each kernel of a layer."""

    attention: Then
    out: Then
    up: Then
    down: Then


def multiprocessors_of(device: torch.device) -> int:
    """Those of a GPU. In Triton's interpreter each program more costs time alone."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


def cuts_by_rule(weights: Weights, rule: Callable[..., C]) -> Cuts[C]:
    """The cuts of a step.

    Args:
        rule: `cut_for` or `rows_cut_for`.
    """
    layer, held = weights.layers[0], weights.layers[0].held

    def of(matrix: Matrix) -> C:
        return rule(n=matrix.n, k=matrix.k, per_word=matrix.per_word)

    return Cuts(
        qkv=of(layer.qkv),
        out=of(layer.out),
        up=of(layer.up),
        down=of(layer.down),
        head=of(weights.head),
        attention=split_for(
            n_pairs=held.n_sequences * held.kv_heads,
            capacity=held.capacity,
            n_multiprocessors=multiprocessors_of(held.keys.device),
            narrow=held.k_scale is not None,
        ),
    )


class OneRow:
    """A step of one row: sums of products, no tensor cores."""

    def __init__(self, shape: ModelShape, weights: Weights, cuts: Cuts[Cut] | None) -> None:
        table, held = weights.table, weights.layers[0].held
        self._weights, self._n_multiprocessors = weights, multiprocessors_of(table.device)
        self.cuts = cuts_by_rule(weights, cut_for) if cuts is None else cuts
        self._cos, self._sin = rotation(shape, held.capacity, table)
        self._x, self._gated = table.new_empty(1, shape.d_model), table.new_empty(1, shape.d_ff)
        self._attention = Attention(1, shape, held, table, self.cuts.attention)
        self._then = self._nexts()
        self.n_keys = min(
            self._programs(self.cuts.head), -(-weights.head.n // self.cuts.head.block)
        )
        """The programs of the output layer, each of which keeps a key where a token is chosen."""

    def __call__(self, ids: Tensor, position: Tensor, out: Tensor) -> None:
        """Starts the kernels from ids (1,) at `position` (1,), into out (1, vocab) of logits, or (1, n_keys)
        of keys."""
        weights, cuts, x = self._weights, self.cuts, self._x
        eps, q = weights.eps, self._attention.q
        kernels.embedded(ids, weights.table, x)
        for layer, then in zip(weights.layers, self._then, strict=True):
            kernels.rotated(
                x,
                layer.attention_gain,
                eps,
                layer.qkv,
                layer.qkv_bias,
                self._cos,
                self._sin,
                position,
                q,
                layer.held,
                cut=cuts.qkv,
                n_programs=self._programs(cuts.qkv),
            )
            mixed = self._attention(layer, position, then.attention)
            self._product(mixed, None, layer.out, x, then=then.out, cut=cuts.out)
            kernels.gated(
                x,
                layer.ff_gain,
                eps,
                layer.up,
                self._gated,
                then=then.up,
                cut=cuts.up,
                n_programs=self._programs(cuts.up),
            )
            self._product(self._gated, None, layer.down, x, then=then.down, cut=cuts.down)
        nothing = kernels.first_of(weights.head, 0)
        self._product(x, weights.gain, weights.head, out, then=nothing, cut=cuts.head)

    def _nexts(self) -> list[Nexts]:
        layers, n_bytes = self._weights.layers, self.cuts.then_bytes
        behind = [*(each.qkv for each in layers[1:]), self._weights.head]
        return [
            Nexts(
                kernels.first_of(layer.out, n_bytes),
                kernels.first_of(layer.up, n_bytes, halves=True),
                kernels.first_of(layer.down, n_bytes),
                kernels.first_of(qkv, n_bytes),
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
        then: Then,
        cut: Cut,
    ) -> None:
        kernels.product(
            x,
            gain,
            self._weights.eps,
            matrix,
            out,
            adds=gain is None,
            then=then,
            cut=cut,
            n_programs=self._programs(cut),
        )

    def _programs(self, cut: Cut) -> int:
        return cut.programs * self._n_multiprocessors


class SeveralRows:
    """A step of 2 to 16 rows on tensor cores, of sequences with equally many new tokens each."""

    def __init__(
        self, shape: ModelShape, weights: Weights, m: int, cuts: Cuts[RowsCut] | None
    ) -> None:
        table, held, eps = weights.table, weights.layers[0].held, weights.eps
        self._weights = weights
        self.cuts = cuts_by_rule(weights, rows_cut_for) if cuts is None else cuts
        self._cos, self._sin = rotation(shape, held.capacity, table)
        self._x, self._gated = table.new_empty(m, shape.d_model), table.new_empty(m, shape.d_ff)
        self._attention = Attention(m, shape, held, table, self.cuts.attention)
        n_blocks = (
            several.embedding_blocks(shape.d_model),
            *(-(-shape.d_model // each.block) for each in (self.cuts.out, self.cuts.down)),
        )
        self._first, self._of_out, self._of_down = (
            several.normed_of(self._x, eps, n) for n in n_blocks
        )
        self._out_pieces = several.pieces_of(self._x, self.cuts.out)
        self._down_pieces = several.pieces_of(self._x, self.cuts.down)
        self._then = self._nexts()
        self.n_keys = -(-weights.head.n // self.cuts.head.block)
        """The programs of the output layer, each of which keeps a key where a token is chosen."""

    def __call__(self, ids: Tensor, position: Tensor, out: Tensor) -> None:
        """Starts the kernels from ids (rows,), the first of each sequence at its `position` (sequences,),
        into out (rows, vocab) of logits, or (rows, n_keys) of keys."""
        weights, cuts, x = self._weights, self.cuts, self._x
        layers = weights.layers
        gains = [*(each.attention_gain for each in layers[1:]), weights.gain]
        normed = self._first
        several.embedded(ids, weights.table, x, layers[0].attention_gain, normed)
        for layer, gain, then in zip(layers, gains, self._then, strict=True):
            several.rotated(
                normed,
                layer.qkv,
                layer.qkv_bias,
                self._cos,
                self._sin,
                position,
                self._attention.q,
                layer.held,
                cut=cuts.qkv,
            )
            mixed = self._attention(layer, position, then.attention)
            several.added(
                mixed,
                layer.out,
                x,
                layer.ff_gain,
                self._of_out,
                pieces=self._out_pieces,
                then=then.out,
                cut=cuts.out,
            )
            several.gated(self._of_out, layer.up, self._gated, then=then.up, cut=cuts.up)
            normed = self._of_down
            several.added(
                self._gated,
                layer.down,
                x,
                gain,
                normed,
                pieces=self._down_pieces,
                then=then.down,
                cut=cuts.down,
            )
        several.logits(normed, weights.head, out, cut=cuts.head)

    def _nexts(self) -> list[Nexts]:
        layers, cuts = self._weights.layers, self.cuts
        n_bytes = cuts.then_bytes
        behind = [*((each.qkv, cuts.qkv) for each in layers[1:]), (self._weights.head, cuts.head)]
        return [
            Nexts(
                several.first_of(layer.out, cuts.out, n_bytes),
                several.first_of(layer.up, cuts.up, n_bytes),
                several.first_of(layer.down, cuts.down, n_bytes),
                several.first_of(*then, n_bytes),
            )
            for layer, then in zip(layers, behind, strict=True)
        ]
