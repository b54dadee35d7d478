"""A two-layer GPT as a user would write it, and factories of it, right and wrong."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

VOCAB_SIZE = 50


class Block(nn.Module):
    def __init__(self, width, n_heads, *, sdpa=True, dropout=0.1):
        super().__init__()
        self.n_heads, self.sdpa = n_heads, sdpa
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        batch, length, width = x.shape
        heads = (batch, length, self.n_heads, width // self.n_heads)
        q, k, v = (
            each.view(heads).transpose(1, 2) for each in self.qkv(self.norm_1(x)).chunk(3, -1)
        )
        if self.sdpa:
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(future, -torch.inf)
            attended = scores.softmax(-1) @ v
        x = x + self.drop(self.out(attended.transpose(1, 2).reshape(x.shape)))
        return x + self.ff(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self, n_layers=2, width=32, *, sdpa=True):
        super().__init__()
        self.vocab_size = VOCAB_SIZE
        self.embedding, self.positions = nn.Embedding(VOCAB_SIZE, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, 2, sdpa=sdpa) for _ in range(n_layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB_SIZE, bias=False)

    def forward(self, ids):
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def scored(logits):
    """A loss of logits alone: of each position's own first token."""
    return F.cross_entropy(
        logits.flatten(0, 1), logits.new_zeros(logits.shape[:2]).long().flatten()
    )


def build():
    return GPT()


def naive():
    return GPT(sdpa=False)


def without_blocks():
    return GPT(n_layers=0)


def with_batch(batch_size, seq_len, device):
    return GPT(), torch.randint(VOCAB_SIZE, (batch_size, seq_len), device=device), scored


def as_object():
    return SimpleNamespace(module=GPT(), batch={"ids": torch.zeros(2, 16).long()}, loss=scored)


def no_scalar():
    return GPT(), torch.zeros(2, 16).long(), lambda logits: logits.sum(-1)


def frozen():
    return GPT().requires_grad_(False)


def without_parameters():
    module = nn.Identity()
    module.vocab_size = VOCAB_SIZE
    return module


def raises():
    raise ValueError("no weights today")


def exits():
    raise SystemExit(3)


def no_module():
    return 3


def wants_more(path):
    return path


def few_ids():
    model = GPT()
    model.vocab_size = 2 * VOCAB_SIZE
    return model


def of_no_range():
    model = GPT()
    del model.vocab_size
    return model


def on_meta():
    with torch.device("meta"):
        return GPT()


def half():
    return GPT().half()


def in_bf16():
    """As a patch to bf16 makes it, with a buffer that stays."""
    model = GPT().bfloat16()
    model.register_buffer("angles", torch.ones(3))
    return model


def compiled():
    return torch.compile(GPT())


def compiled_by_blocks():
    model = GPT()
    for each in model.blocks:
        each.compile()
    return model


def compiled_inside():
    model = GPT()
    model.blocks[1].compile()
    return model


def wrapped():
    return nn.DataParallel(GPT())


class Growing(GPT):
    calls = 0

    def forward(self, ids):
        self.calls += 1
        return super().forward(ids)[:, :, : VOCAB_SIZE - self.calls]


def growing():
    return Growing(), torch.zeros(2, 16).long(), scored


class Unseeded(GPT):
    def __init__(self):
        super().__init__()
        nn.init.normal_(self.head.weight, generator=torch.Generator().manual_seed(_entropy()))


def _entropy():
    import os

    return int.from_bytes(os.urandom(4))


def unseeded():
    return Unseeded()
