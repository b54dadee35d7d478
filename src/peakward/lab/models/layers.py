"""Layers of the reference decoder in a file of their own: mixtures of experts, quantised weights.

In a mixture of experts each token goes through a few of many networks: Shazeer et al. 2017; the routing is
that of Mixtral (Jiang et al. 2024, section 2.1). It is dropless, as MegaBlocks (Gale et al. 2023): every
token reaches its chosen experts, however many other tokens chose them too, without a capacity or padding.

Quantised linear layers store weights in 8 or 4 bits and multiply them in that form, for passes without
gradients only. Such a layer is an nn.Linear with another class. Its dense weight stays on the meta device,
where it keeps its place in the order in which weights are drawn. After `keep` has taken the numbers it has no
dense weight.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from peakward.kernels.ops.gating.api import Activation, GatingFn
from peakward.kernels.ops.grouped_matmul.api import grouped_matmul
from peakward.kernels.ops.quantized_matmul import reference
from peakward.kernels.ops.quantized_matmul.api import int4_matmul, int8_matmul
from peakward.levers.weights import INT4_GROUP
from peakward.records.case import StoredWeights
from peakward.records.model_shape import ModelShape


class GroupedLinear(nn.Module):
    """A linear layer without bias for each group of rows; weight (groups, out, in)."""

    def __init__(self, n_groups: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_groups, out_features, in_features))

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        """x (n, in) → (n, out), in the groups of `ops.grouped_matmul`."""
        return grouped_matmul(x, self.weight, ends)


class MixtureOfExperts(nn.Module):
    """Σ over a token's chosen experts e of g_e · feed-forward_e(x), the g_e summing to 1."""

    def __init__(self, shape: ModelShape, activation: Activation, gating: GatingFn) -> None:
        super().__init__()
        self.gated, self.n_active = shape.gated, shape.n_active_experts
        self.activation, self.gating = activation, gating
        width = 2 * shape.d_ff if shape.gated else shape.d_ff
        self.router = nn.Linear(shape.d_model, shape.n_experts, bias=False)
        self.up = GroupedLinear(shape.n_experts, shape.d_model, width)
        self.down = GroupedLinear(shape.n_experts, shape.d_ff, shape.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, seq_len, d_model) → the same shape."""
        tokens = x.flatten(0, -2)
        share, chosen = self.route(tokens)
        # Visits are pairs (token, choice), token by token; the experts need them expert by expert.
        expert, order = chosen.flatten().sort(stable=True)
        experts = torch.arange(self.router.out_features, device=x.device)
        ends = torch.searchsorted(expert, experts, right=True, out_int32=True)
        visiting = tokens.repeat_interleave(self.n_active, dim=0).index_select(0, order)
        visited = self._experts(visiting, ends)
        by_token = visited.index_select(0, order.argsort()).view(*chosen.shape, -1)
        return (share.to(visited.dtype)[..., None] * by_token).sum(1).view(x.shape)

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's likeliest experts: tokens (n, d_model) → weights and int64 indices, both
        (n, active).

        The softmax is taken over all experts in at least fp32, then the chosen weights are divided
        by their sum.
        """
        logits = self.router(tokens)
        likely = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        share, chosen = likely.topk(self.n_active, dim=-1)
        return share / share.sum(-1, keepdim=True), chosen

    def _experts(self, x: Tensor, ends: Tensor) -> Tensor:
        """`decoder.FeedForward` of each group of rows: x (n, d_model) → the same shape."""
        x = self.up(x, ends)
        gated = self.gating(self.activation, x) if self.gated else self.activation(x)
        return self.down(gated, ends)


SCALE_DTYPE = torch.bfloat16
CHUNK_ELEMENTS = 1 << 22
"""The elements that are quantised at once, at up to 32 bytes each, so that a large matrix needs no
temporaries of its own size."""


class QuantisedLinear(nn.Linear, ABC):
    """F.linear on quantised weights; under autocast the input is cast to its type."""

    stored: Tensor
    scale: Tensor

    @classmethod
    @abstractmethod
    def quantised(cls, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The stored form of rows (n, in_features), and their scales (groups, n)."""

    @abstractmethod
    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """The dense weight that the stored form stands for: (out_features, in_features) in `dtype`."""

    @abstractmethod
    def product(self, x: Tensor) -> Tensor:
        """x (…, in_features) times the transposed weight."""

    def keep(self, weight: Tensor) -> None:
        """Quantises (out_features, in_features), some rows at a time, and drops the dense weight."""
        n_rows = max(1, CHUNK_ELEMENTS // self.in_features)
        whole: tuple[Tensor, ...] = ()
        for first in range(0, self.out_features, n_rows):
            rows = slice(first, first + n_rows)
            held, scale = self.quantised(weight[rows])
            parts = held, scale.to(SCALE_DTYPE)
            whole = whole or tuple(self._like(each) for each in parts)
            for all_rows, part in zip(whole, parts, strict=True):
                self._rows_of(all_rows, rows).copy_(part)
        self.hold(*whole)

    def hold(self, stored: Tensor, scale: Tensor) -> None:
        """Takes a stored form and its scales, as `quantised` makes them, in the place of the weight."""
        del self.weight
        self.register_buffer("stored", stored)
        self.register_buffer("scale", scale.to(SCALE_DTYPE))

    def forward(self, input: Tensor) -> Tensor:
        """(…, in_features) → (…, out_features)."""
        kind = input.device.type
        x = input.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else input
        y = self.product(x)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def _like(self, part: Tensor) -> Tensor:
        """An empty tensor with room for all rows, of the kind of a part that has some of them."""
        shape = list(part.shape)
        shape[_dimension_of_rows(part)] = self.out_features
        return part.new_empty(shape)

    def _rows_of(self, whole: Tensor, rows: slice) -> Tensor:
        return whole[rows] if _dimension_of_rows(whole) == 0 else whole[:, rows]


class Int8Linear(QuantisedLinear):
    """A linear layer in int8, with a scale for each output."""

    @classmethod
    def quantised(cls, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(n, in_features) of int8, (1, n)."""
        return reference.int8_weight(weight)

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """(out_features, in_features)."""
        return reference.int8_dequantized(self.stored, self.scale, dtype)

    def product(self, x: Tensor) -> Tensor:
        """(…, in_features) → (…, out_features)."""
        return int8_matmul(x, self.stored, self.scale)


class Int4Linear(QuantisedLinear):
    """A linear layer in int4, with a scale for each output and `group` inputs; the group divides
    in_features."""

    group: ClassVar[int] = INT4_GROUP

    @classmethod
    def quantised(cls, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(⌈in_features / 128⌉, n, 16) of int32, (in_features / group, n)."""
        return reference.int4_weight(weight, group=cls.group)

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """(out_features, in_features)."""
        return reference.int4_dequantized(self.stored, self.scale, None, dtype, group=self.group)

    def product(self, x: Tensor) -> Tensor:
        """(…, in_features) → (…, out_features)."""
        return int4_matmul(x, self.stored, self.scale)


class Int4By32Linear(Int4Linear):
    """As `Int4Linear`, with a scale for 32 inputs."""

    group = 32


KINDS: dict[StoredWeights, type[QuantisedLinear]] = {
    "int8": Int8Linear,
    "int4:128": Int4Linear,
    "int4:128-calibrated": Int4Linear,
    "int4:32-calibrated": Int4By32Linear,
}
"""The layer of each form. It rounds the random numbers that it is given to nearest; calibrated weights of the
same form are made where a real model is read (`lab/inference/quantised.py`)."""


def apply_quantised(blocks: nn.Module, weights: StoredWeights) -> None:
    """Turns every linear layer into its quantised form, in place. The weights stay on the meta device
    until `keep`."""
    if weights == "dense":
        return
    for module in blocks.modules():
        if type(module) is nn.Linear:
            module.__class__ = KINDS[weights]


def n_weights(module: nn.Module) -> int:
    """The number of quantised weights, which are not parameters."""
    quantised = (each for each in module.modules() if isinstance(each, QuantisedLinear))
    return sum(each.in_features * each.out_features for each in quantised)


def _dimension_of_rows(kept: Tensor) -> int:
    """The dimension of the weight's rows in a stored tensor: the first in bytes (n, k), the second in
    packed tiles and in scales."""
    return 0 if kept.dtype == torch.int8 else 1
