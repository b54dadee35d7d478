"""A plain decoder in which nothing is at fault, and whose parts the faults replace one at a time."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faults.lab import Step
from peakward.records.case import DeviceType

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Sizes(NamedTuple):
    """Of a step in which products take most of the time."""

    d_model: int
    n_heads: int
    n_layers: int
    vocab_size: int
    batch_size: int
    seq_len: int
    dtype: torch.dtype


SIZES: dict[DeviceType, Sizes] = {
    "cpu": Sizes(512, 8, 2, 512, 1, 256, torch.float32),
    # 40 ms on an H100 by the datasheet's rate at 0.6: eight times what the host needs to launch it.
    "cuda": Sizes(4096, 32, 2, 8192, 4, 2048, torch.bfloat16),
}


def fused_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal, by torch's own choice of kernel. (batch, heads, length, head_dim) each."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Parts(NamedTuple):
    """Of a block."""

    norm: Callable[[int], nn.Module] = nn.LayerNorm
    attend: Attend = fused_attention
    activate: Callable[[Tensor], Tensor] = F.relu


class Block(nn.Module):
    """Attention and a feed-forward network of four times the width, each after its norm."""

    def __init__(self, sizes: Sizes, parts: Parts) -> None:
        super().__init__()
        d_model = sizes.d_model
        self.n_heads, self.parts = sizes.n_heads, parts
        self.norms = nn.ModuleList([parts.norm(d_model), parts.norm(d_model)])
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.up = nn.Linear(d_model, 4 * d_model, bias=False)
        self.down = nn.Linear(4 * d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d_model) to the same."""
        heads = (
            each.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for each in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        x = x + self.out(self.parts.attend(*heads).transpose(1, 2).flatten(2))
        return x + self.down(self.parts.activate(self.up(self.norms[1](x))))


class Decoder(nn.Module):
    """Token ids (batch, length) to logits (batch, length, vocab_size)."""

    def __init__(self, sizes: Sizes, parts: tuple[Parts, ...]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocab_size, sizes.d_model)
        self.blocks = nn.ModuleList([Block(sizes, each) for each in parts])
        self.norm = nn.LayerNorm(sizes.d_model)
        self.head = nn.Linear(sizes.d_model, sizes.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each position."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def decoder(sizes: Sizes, device: DeviceType, *parts: Parts) -> Decoder:
    """On its device, a block for each of the parts; without any, as many as the sizes say."""
    with torch.device(device):
        return Decoder(sizes, parts or (Parts(),) * sizes.n_layers).to(sizes.dtype)


def of_layers(sizes: Sizes, n: float, faulty: Parts) -> tuple[Parts, ...]:
    """The fault in the first `n` of the blocks."""
    return (faulty,) * int(n) + (Parts(),) * (sizes.n_layers - int(n))


def tokens(sizes: Sizes, device: DeviceType) -> Tensor:
    """Random ids, one more than the length."""
    shape = (sizes.batch_size, sizes.seq_len + 1)
    return torch.randint(sizes.vocab_size, shape, device=device)


def optimizer(model: nn.Module, **settings: bool) -> torch.optim.Optimizer:
    """AdamW, fused unless told otherwise."""
    return torch.optim.AdamW(model.parameters(), lr=1e-5, **(settings or {"fused": True}))


def training(
    model: nn.Module,
    ids: Tensor,
    update: torch.optim.Optimizer | None = None,
    *,
    before: Step = lambda: None,
    after: Callable[[Tensor], object] = lambda _loss: None,
) -> Step:
    """A step of training; `before` and `after` are where a fault may lie."""
    update = update or optimizer(model)

    def step() -> None:
        before()
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        update.step()
        update.zero_grad(set_to_none=True)
        after(loss)

    return step
