"""A step of decode in plain torch, compiled whole with CUDA graphs on a static cache, as gpt-fast does it.

Weights are random; matrices are dense in bf16, int8 widened in the product, or torch's own int4 in groups of
128.
"""

import statistics
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoding.graphs import Report, timed_s
from decoding.launches import POSITIONS
from peakward.lab.models.decoder import rotation
from peakward.models import presets


def made(*size: int, dtype: torch.dtype) -> Tensor:
    if dtype == torch.int8:
        return torch.randint(-127, 128, size, dtype=dtype, device="cuda")
    return torch.randn(size, device="cuda").mul_(0.02).to(dtype)


class Linear(nn.Module):
    """A layer's product as gpt-fast has it: dense, int8 widened in the product, or torch's int4."""

    def __init__(self, n: int, k: int, weights: str) -> None:
        super().__init__()
        self.weights, self.n = weights, n
        if weights == "dense":
            self.register_buffer("weight", made(n, k, dtype=torch.bfloat16))
        elif weights == "int8":
            self.register_buffer("weight", made(n, k, dtype=torch.int8))
            self.register_buffer("scale", made(n, dtype=torch.bfloat16))
        else:
            packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda")
            self.register_buffer("weight", torch.ops.aten._convert_weight_to_int4pack(packed, 8))
            self.register_buffer("scale", made(k // 128, n, 2, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        if self.weights == "dense":
            return F.linear(x, self.weight)
        if self.weights == "int8":
            return F.linear(x, self.weight.to(x.dtype)) * self.scale
        rows = x.reshape(-1, x.shape[-1])
        product = torch.ops.aten._weight_int4pack_mm(rows, self.weight, 128, self.scale)
        return product.view(*x.shape[:-1], self.n)


class Block(nn.Module):
    """Attention to the cache and the gated network, on one token."""

    def __init__(self, shape: Any, weights: str, n_positions: int) -> None:
        super().__init__()
        self.shape = shape
        heads = (shape.n_heads + 2 * shape.n_kv_heads) * shape.head_dim
        self.qkv = Linear(heads, shape.d_model, weights)
        self.out = Linear(shape.d_model, shape.n_heads * shape.head_dim, weights)
        self.up = Linear(2 * shape.d_ff, shape.d_model, weights)
        self.down = Linear(shape.d_model, shape.d_ff, weights)
        for name in ("first", "second"):
            self.register_buffer(
                name, torch.ones(shape.d_model, dtype=torch.bfloat16, device="cuda")
            )
        size = (1, shape.n_kv_heads, n_positions, shape.head_dim)
        for name in ("keys", "values"):
            self.register_buffer(name, made(*size, dtype=torch.bfloat16))

    def norm(self, x: Tensor, gain: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).type_as(x) * gain

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, position: Tensor, mask: Tensor
    ) -> Tensor:
        shape = self.shape
        qkv = self.qkv(self.norm(x, self.first)).view(1, 1, -1, shape.head_dim).transpose(1, 2)
        q, k, v = qkv.split((shape.n_heads, shape.n_kv_heads, shape.n_kv_heads), 1)

        def turned(each: Tensor) -> Tensor:
            low, high = each.float().chunk(2, -1)
            return torch.cat((low * cos - high * sin, high * cos + low * sin), -1).type_as(x)

        self.keys[:, :, position] = turned(k)
        self.values[:, :, position] = v
        mixed = F.scaled_dot_product_attention(turned(q), self.keys, self.values, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(1, 1, -1))
        gate, up = self.up(self.norm(x, self.second)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Peer(nn.Module):
    """The decoder on one token, from ids (1, 1) to logits (1, 1, vocab)."""

    def __init__(self, name: str, weights: str, n_positions: int) -> None:
        super().__init__()
        shape = self.shape = presets.model(name)
        self.register_buffer("table", made(shape.vocab_size, shape.d_model, dtype=torch.bfloat16))
        self.blocks = nn.ModuleList(
            Block(shape, weights, n_positions) for _ in range(shape.n_layers)
        )
        self.head = Linear(shape.vocab_size, shape.d_model, "dense")
        self.register_buffer("gain", torch.ones(shape.d_model, dtype=torch.bfloat16, device="cuda"))
        cos, sin = rotation(shape, n_positions, torch.zeros(1, device="cuda"))
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        mask = torch.ones(n_positions, n_positions, dtype=torch.bool, device="cuda").tril()
        self.register_buffer("mask", mask)

    def forward(self, ids: Tensor, position: Tensor) -> Tensor:
        x = F.embedding(ids, self.table)
        cos, sin, mask = self.cos[position], self.sin[position], self.mask[None, None, position]
        for block in self.blocks:
            x = block(x, cos, sin, position, mask)
        return self.head(self.blocks[0].norm(x, self.gain))

    def read_bytes(self) -> int:
        """The bytes that a step must read: all but the tables."""
        tables = (self.table, self.mask, self.cos, self.sin)
        return sum(each.nbytes for each in self.buffers()) - sum(each.nbytes for each in tables)


def compiled(name: str, weights: str, n_positions: int) -> tuple[Peer, Callable[[], Tensor]]:
    """The peer and its step at the last position."""
    torch._dynamo.reset()
    torch._inductor.config.coordinate_descent_tuning = True
    model = Peer(name, weights, n_positions)
    step = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    ids = torch.zeros(1, 1, dtype=torch.int64, device="cuda")
    position = torch.full((1,), n_positions - 1, device="cuda")
    return model, partial(step, ids, position)


@torch.no_grad()
def peer(report: Report, name: str, weights: str) -> None:
    """Times the peer's step, the median of 8 rounds of 20."""
    began = monotonic()
    model, step = compiled(name, weights, POSITIONS)
    for _ in range(4):
        step()
    took = [timed_s(step, 20) for _ in range(8)]
    median = statistics.median(took)
    report.add(
        phase="peer", model=name, weights=weights, per_s=round(1 / median, 1),
        bytes=model.read_bytes(), share=round(
            model.read_bytes() / median / report.held["copy_bytes_per_s"], 4
        ),
        compiled_s=round(monotonic() - began, 1),
    )  # fmt: skip
    torch._dynamo.reset()
