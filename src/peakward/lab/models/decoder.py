"""The reference decoder: a decoder-only Transformer in one file, with every choice of `ModelShape`
except the mixture of experts, which is in `experts`.

Query, key and value projections are one matrix, and so are gate and up: the same parameters as apart,
in fewer and larger matmuls.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peakward.kernels.ops.attention.api import AttentionFn
from peakward.kernels.ops.attention.mask import first_in_reach
from peakward.kernels.ops.gating import api as gating_api
from peakward.kernels.ops.gating.api import GatingFn
from peakward.kernels.ops.loss import api as loss_api
from peakward.kernels.ops.loss.api import LossFn
from peakward.kernels.ops.norm_modules.api import FusedNorm, of_sum
from peakward.kernels.ops.rotation import api as rotation_api
from peakward.kernels.ops.rotation.api import RotationFn
from peakward.lab.models.layers import MixtureOfExperts, QuantisedLinear, apply_quantised
from peakward.records.case import StoredWeights
from peakward.records.model_shape import ModelShape

if TYPE_CHECKING:
    from peakward.lab.inference.cache import Kept, KeptLayer

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


class Computation(NamedTuple):
    """One implementation of each part of a block that has several; norms are modules and are replaced
    as such."""

    attention: AttentionFn
    rotation: RotationFn
    gating: GatingFn


INITIAL_DEVIATION = 0.02
"""The standard deviation of drawn weights (Radford et al. 2019, GPT-2)."""


def norm(shape: ModelShape) -> nn.Module:
    """RMSNorm (Zhang & Sennrich 2019) or LayerNorm over d_model, computed in at least fp32."""
    kind = nn.RMSNorm if shape.norm == "rmsnorm" else nn.LayerNorm
    return kind(shape.d_model, eps=shape.norm_eps)


def rotation(
    shape: ModelShape, seq_len: int, like: Tensor, start: int | Tensor = 0
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of RoPE (Su et al. 2021) from position `start` on, each (seq_len,
    head_dim / 2); with a start for each row, (batch, seq_len, head_dim / 2).

    Angles are computed in at least fp32: bf16 holds positions exactly only to 256.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    exponent = torch.arange(0, shape.head_dim, 2, device=like.device, dtype=dtype) / shape.head_dim
    if isinstance(start, Tensor):
        angle = positions(seq_len, start)[..., None] * shape.rope_theta**-exponent
    else:
        position = torch.arange(start, start + seq_len, device=like.device, dtype=dtype)
        angle = torch.outer(position, shape.rope_theta**-exponent)
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def positions(seq_len: int, start: Tensor) -> Tensor:
    """The positions (batch, seq_len) of tokens that begin at `start` (batch,) in their rows."""
    return start[:, None] + torch.arange(seq_len, device=start.device)


def sinusoids(shape: ModelShape, seq_len: int, like: Tensor, start: int | Tensor = 0) -> Tensor:
    """Position vectors (seq_len, d_model) from `start` on (Vaswani et al. 2017, section 3.5); with a
    start for each row, (batch, seq_len, d_model)."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    exponent = torch.arange(0, shape.d_model, 2, device=like.device, dtype=dtype) / shape.d_model
    if isinstance(start, Tensor):
        angle = positions(seq_len, start)[..., None] * 10_000.0**-exponent
    else:
        position = torch.arange(start, start + seq_len, device=like.device, dtype=dtype)
        angle = torch.outer(position, 10_000.0**-exponent)
    pairs = torch.stack((angle.sin(), angle.cos()), dim=-1)
    return pairs.flatten(-2)[..., : shape.d_model].to(like.dtype)


def with_sinusoids(shape: ModelShape, x: Tensor, start: int | Tensor = 0) -> Tensor:
    """Embedded tokens (batch, seq_len, d_model) times √d_model, and the sinusoids from position `start` on
    (Vaswani et al. 2017, sections 3.4 and 3.5).

    Without the factor, tokens of `INITIAL_DEVIATION` are lost beside sinusoids of 0.7: a small decoder of
    bytes came to 3.3 nats a byte, and with it to 2.3.
    """
    # In one operator, for a product of its own would read and write all of x again.
    return torch.add(sinusoids(shape, x.shape[1], x, start), x, alpha=math.sqrt(shape.d_model))


def alibi(shape: ModelShape, seq_len: int, like: Tensor, start: int = 0) -> Tensor:
    """Score bias (heads, seq_len, keys): minus slope times distance (Press et al. 2022).

    The keys are all from the first one that the first query attends to.
    """
    first = first_in_reach(start, shape.window)
    position = torch.arange(first, start + seq_len, device=like.device)
    distance = (position[start - first :, None] - position[None, :]).clamp(min=0)
    return -slopes(shape, like)[:, None, None] * distance


def score_bias(shape: ModelShape, seq_len: int, like: Tensor, start: int = 0) -> Tensor | None:
    """The terms that the shape's positions add to the scores of tokens from `start` on, or None."""
    return alibi(shape, seq_len, like, start) if shape.positions == "alibi" else None


def slopes(shape: ModelShape, like: Tensor) -> Tensor:
    """ALiBi's slopes (heads,) in at least fp32: 2^(-8·i/n) for n heads a power of two.

    For other n they are, as in the paper's code, those of the power below and every second one of the
    power above.
    """

    n = shape.n_heads
    power = 1 << (n.bit_length() - 1)
    dtype = torch.promote_types(like.dtype, torch.float32)

    def steps(end: int, by: int) -> Tensor:
        return torch.arange(1, end + 1, by, device=like.device, dtype=dtype)

    # On the device throughout, so that a step of decode can be captured.
    each = torch.cat((steps(power, 1) / power, steps(2 * (n - power), 2) / (2 * power)))
    return torch.exp2(-8.0 * each)


class SelfAttention(nn.Module):
    """Causal multi-head, grouped-query or multi-query attention."""

    def __init__(self, shape: ModelShape, how: Computation) -> None:
        super().__init__()
        self.shape, self.attention, self.rotation = shape, how.attention, how.rotation
        heads = shape.n_heads + 2 * shape.n_kv_heads
        self.qkv = nn.Linear(shape.d_model, heads * shape.head_dim, bias=shape.qkv_bias)
        self.out = nn.Linear(shape.n_heads * shape.head_dim, shape.d_model, bias=shape.bias)

    def forward(
        self,
        x: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        bias: Tensor | None,
        kept: "KeptLayer | None",
    ) -> Tensor:
        batch, seq_len, _ = x.shape
        q, k, v = self._projected(x, cos, sin)
        window = self.shape.window
        if kept is None:
            mixed = self.attention(q, k, v, window=window, bias=bias)
        else:
            # By these names, so that nothing holds the new ones while attention reads what is kept.
            k, v = kept.extend(k, v, window=window)
            mixed = kept.attend(self.attention, q, k, v, window=window, bias=bias)
        return self.out(mixed.transpose(1, 2).reshape(batch, seq_len, -1))

    def _projected(
        self, x: Tensor, cos: Tensor | None, sin: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (batch, heads, seq_len, head_dim), the first two turned."""
        shape = self.shape
        packed = self.qkv(x).unflatten(-1, (-1, shape.head_dim)).transpose(1, 2)
        if cos is not None and sin is not None:
            return self.rotation(packed, cos, sin, shape.n_heads, shape.n_kv_heads)
        q, k, v = packed.split((shape.n_heads, shape.n_kv_heads, shape.n_kv_heads), dim=1)
        return q, k, v


class FeedForward(nn.Module):
    """act(x·W_up)·W_down, or gated: (act(x·W_gate) ⊙ x·W_up)·W_down (Shazeer 2020)."""

    def __init__(self, shape: ModelShape, gating: GatingFn) -> None:
        super().__init__()
        self.gated, self.activation, self.gating = (
            shape.gated,
            ACTIVATIONS[shape.activation],
            gating,
        )
        width = 2 * shape.d_ff if shape.gated else shape.d_ff
        self.up = nn.Linear(shape.d_model, width, bias=shape.bias)
        self.down = nn.Linear(shape.d_ff, shape.d_model, bias=shape.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        gated = self.gating(self.activation, x) if self.gated else self.activation(x)
        return self.down(gated)


def feed_forward(shape: ModelShape, gating: GatingFn) -> nn.Module:
    """One network; a mixture of networks where the shape has several."""
    if shape.n_experts == 1:
        return FeedForward(shape, gating)
    return MixtureOfExperts(shape, ACTIVATIONS[shape.activation], gating)


class Block(nn.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream."""

    def __init__(self, shape: ModelShape, how: Computation) -> None:
        super().__init__()
        self.attention_norm, self.attention = norm(shape), SelfAttention(shape, how)
        self.ff_norm, self.ff = norm(shape), feed_forward(shape, how.gating)

    def forward(
        self,
        x: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        bias: Tensor | None,
        kept: "KeptLayer | None" = None,
    ) -> Tensor:
        if isinstance(self.ff_norm, FusedNorm):
            x, normed = of_sum(
                self.ff_norm, x, self.attention(self.attention_norm(x), cos, sin, bias, kept)
            )
            return x + self.ff(normed)
        x = x + self.attention(self.attention_norm(x), cos, sin, bias, kept)
        return x + self.ff(self.ff_norm(x))


class Readout(nn.Module):
    """Final norm and head; with targets, the mean cross-entropy, taken in at least fp32."""

    def __init__(self, shape: ModelShape, loss: LossFn = loss_api.of_torch) -> None:
        super().__init__()
        self.norm, self.loss = norm(shape), loss
        self.head = nn.Linear(shape.d_model, shape.vocab_size, bias=False)

    def forward(self, x: Tensor, targets: Tensor | None) -> Tensor:
        hidden = self.norm(x)
        return self.head(hidden) if targets is None else self.loss(self.head, hidden, targets)


class Decoder(nn.Module):
    """Token ids to logits, or with targets to the mean cross-entropy."""

    def __init__(
        self,
        shape: ModelShape,
        attention: AttentionFn,
        *,
        loss: LossFn = loss_api.of_torch,
        rotation: RotationFn = rotation_api.of_torch,
        gating: GatingFn = gating_api.of_torch,
    ) -> None:
        super().__init__()
        self.shape, how = shape, Computation(attention, rotation, gating)
        self.embedding = nn.Embedding(shape.vocab_size, shape.d_model)
        if shape.positions == "learned":
            self.position_embedding = nn.Embedding(shape.max_seq_len, shape.d_model)
        self.blocks = nn.ModuleList(Block(shape, how) for _ in range(shape.n_layers))
        self.readout = Readout(shape, loss)
        if shape.tied_head:
            self.readout.head.weight = self.embedding.weight

    def forward(
        self,
        ids: Tensor,
        targets: Tensor | None = None,
        cache: "Kept | None" = None,
        n_logits: int = 1,
    ) -> Tensor:
        """ids, targets (batch, seq_len) of int64 → logits (batch, seq_len, vocab) or a scalar loss.

        A target of -100 does not count. With a cache the ids follow the tokens that it holds: their
        keys and values are written to it, and the logits are those of the last `n_logits` positions,
        (batch, n_logits, vocab).
        """
        shape, start = self.shape, 0 if cache is None else cache.start
        seq_len = ids.shape[1]
        x = self.embedding(ids)
        if shape.positions == "learned":
            table = self.position_embedding.weight
            if isinstance(start, Tensor):
                x = x + table[positions(seq_len, start)]
            else:
                x = x + table[start : start + seq_len]
        elif shape.positions == "sinusoidal":
            x = with_sinusoids(shape, x, start)
        cos, sin = None, None
        if shape.positions == "rope":
            cos, sin = rotation(shape, seq_len, x, start)
        bias = score_bias(shape, seq_len, x) if cache is None else cache.bias(seq_len, x)
        layers = [None] * len(self.blocks) if cache is None else cache.layers
        for block, kept in zip(self.blocks, layers, strict=True):
            x = block(x, cos, sin, bias, kept)
        return self.readout(x if cache is None else x[:, -n_logits:], targets)

    def initialise(self, seed: int) -> None:
        """Draws normal weights of `INITIAL_DEVIATION`, residual projections that/√(2·layers) (GPT-2),
        norms 1.

        One tensor at a time is drawn in fp32 and then cast. Equal seeds therefore give equal models in
        every dtype, and at most one tensor's fp32 copy exists at a time. A weight that is only planned
        is drawn in its turn, and handed to its layer in the type of the others.
        """
        device, dtype = self.embedding.weight.device, self.embedding.weight.dtype
        generator = torch.Generator(device).manual_seed(seed)
        scale = 1 / math.sqrt(2 * self.shape.n_layers)
        for name, parameter in list(self.named_parameters()):
            if parameter.dim() == 1:
                value = torch.ones if name.endswith("norm.weight") else torch.zeros
                parameter.data.copy_(value(parameter.shape, device=parameter.device))
                continue
            residual = name.endswith(("attention.out.weight", "ff.down.weight"))
            drawn = torch.randn(parameter.shape, generator=generator, device=device)
            drawn.mul_(INITIAL_DEVIATION * (scale if residual else 1.0))
            owner = self.get_submodule(name.rpartition(".")[0])
            if isinstance(owner, QuantisedLinear):
                owner.keep(drawn.to(dtype))
            else:
                parameter.data.copy_(drawn)
            del drawn  # Else it would stay in memory beside the next one.


def build(
    shape: ModelShape,
    *,
    attention: AttentionFn,
    loss: LossFn = loss_api.of_torch,
    rotation: RotationFn = rotation_api.of_torch,
    gating: GatingFn = gating_api.of_torch,
    weights: StoredWeights = "dense",
    device: str,
    dtype: torch.dtype,
    seed: int,
) -> Decoder:
    """A decoder with initialised weights on its device; no second copy of them exists anywhere."""
    with torch.device("meta"):
        model = Decoder(shape, attention, loss=loss, rotation=rotation, gating=gating)
    apply_quantised(model.blocks, weights)
    made: dict[Tensor, nn.Parameter] = {}  # A tied head's weight is met twice and made once.
    for module in model.modules():
        for name, planned in list(module.named_parameters(recurse=False)):
            if isinstance(module, QuantisedLinear) and name == "weight":
                continue  # At most one dense matrix exists at a time.
            if planned not in made:
                weight = torch.empty(planned.shape, device=device, dtype=dtype)
                made[planned] = nn.Parameter(weight)
            setattr(module, name, made[planned])
    model.initialise(seed)
    return model
