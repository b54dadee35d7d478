"""Attention and losses replaced inside modules on a GPU, by torch's kernels and Peakward's own."""

import copy

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peakward.lab.levers.in_place import Applied, Live
from peakward.lab.numerics.judge import UNIT_ROUNDOFF, distance
from peakward.lab.rewriting import rewriting
from peakward.records.case import AS_WRITTEN

pytestmark = pytest.mark.gpu

DIM, HEADS, LENGTH, VOCAB = 256, 4, 256, 512


class Block(nn.Module):
    """Attention written out with a mask buffer, as many write it."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(DIM),
            nn.Linear(DIM, 3 * DIM),
            nn.Linear(DIM, DIM),
        )
        self.register_buffer("tril", torch.tril(torch.ones(LENGTH, LENGTH))[None, None])

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            each.view(b, t, HEADS, -1).transpose(1, 2)
            for each in self.qkv(self.norm(x)).chunk(3, -1)
        )
        att = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        att = att.masked_fill(self.tril[:, :, :t, :t] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return x + self.out(y.transpose(1, 2).flatten(2))


class Gpt(nn.Module):
    """Its head is its embedding, and its loss is inside."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head.weight = self.embed.weight

    def forward(self, ids, targets):
        x = self.embed(ids)
        for each in self.blocks:
            x = each(x)
        logits = self.head(x)
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


@pytest.fixture
def subject():
    torch.manual_seed(0)
    ids = torch.randint(VOCAB, (2, LENGTH), device="cuda")
    yield Gpt().cuda(), ids, ids.roll(-1, 1)
    torch._dynamo.reset()


def numbers(model, ids, targets):
    model.zero_grad()
    loss = model(ids, targets)
    loss.backward()
    return (loss.detach(), *(each.grad.detach().clone() for each in model.parameters()))


CASES = [
    {"attention": "sdpa"},
    {"attention": "sdpa-cudnn", "precision": "bf16-mixed"},
    {"attention": "flash", "precision": "bf16-mixed"},
    {"attention": "flash"},
    {"attention": "flash-hopper", "precision": "bf16-mixed"},
    {"attention": "flash-hopper", "precision": "bf16"},
    {"loss": "fused"},
    {"loss": "chunked", "precision": "bf16-mixed"},
    {"loss": "recomputed", "precision": "bf16"},
    {"attention": "sdpa", "compile": "default", "precision": "bf16-mixed"},
    {"attention": "flash-hopper", "compile": "default", "precision": "bf16", "loss": "fused"},
    {"attention": "sdpa", "compile": "default", "compile_scope": "model", "precision": "bf16"},
    {
        "norm": "fused",
        "precision": "bf16-mixed",
        "checkpointing": "every-block",
        "attention": "flash",
    },
]


@pytest.mark.parametrize("settings", CASES, ids=lambda each: "-".join(map(str, each.values())))
def test_errs_no_more_than_twice_the_module_as_written_in_that_precision(settings, subject):
    model, ids, targets = subject
    oracle = numbers(copy.deepcopy(model).double(), ids, targets)
    plain = copy.deepcopy(model)
    kept = {"precision": settings.get("precision", "fp32")}
    Applied(Live(model=plain), msgspec.structs.replace(AS_WRITTEN, **kept))
    expected = numbers(plain, ids, targets)
    before = numbers(model, ids, targets)
    applied = Applied(Live(model=model), msgspec.structs.replace(AS_WRITTEN, **settings))
    found = numbers(model, ids, targets)
    parts = {each for each in ("attention", "loss") if settings.get(each)}
    assert parts <= rewriting.of(model).outcomes.keys() if parts else True
    # The loss is one number and may agree by luck: its least error is the operands' roundoff.
    least = [UNIT_ROUNDOFF[kept["precision"]], *[2.0**-21] * len(found)]
    for mine, theirs, exact, u in zip(found, expected, oracle, least, strict=False):
        assert distance((mine,), (exact,)) <= 2 * max(distance((theirs,), (exact,)), u)
    applied.undo()
    torch._dynamo.reset()
    if kept["precision"] != "bf16":
        for mine, theirs in zip(numbers(model, ids, targets), before, strict=True):
            assert distance((mine,), (theirs,)) <= 2.0**-20
