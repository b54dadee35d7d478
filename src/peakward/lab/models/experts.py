"""A mixture-of-experts feed-forward: each token goes through a few of many networks.

Shazeer et al. 2017; the routing is that of Mixtral (Jiang et al. 2024, section 2.1). It is dropless, as
MegaBlocks (Gale et al. 2023): every token reaches its chosen experts, however many other tokens chose
them too, without a capacity or padding.
"""

import torch
from torch import Tensor, nn

from peakward.kernels.ops.gating.api import Activation, GatingFn
from peakward.kernels.ops.grouped_matmul.api import grouped_matmul
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
