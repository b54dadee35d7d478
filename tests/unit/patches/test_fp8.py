"""Lines that put layers in fp8: the patched model computes as the lever in place, step by step."""

import ast

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peakward.kernels.ops.forwards import states
from peakward.lab.levers import fp8_layers
from peakward.lab.levers.fp8_layers import Times, choice_in
from peakward.lab.levers.in_place import Applied, Live
from peakward.levers.in_code import in_module
from peakward.records.case import AS_WRITTEN
from tiers import rows_in_full

IDS = torch.arange(64).view(4, 16) % 48


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 128), nn.Linear(64, 32, bias=False)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        q, k, v, gate = self.qkv(self.norm(x)).chunk(4, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.drop(self.out(torch.cat((y, gate), dim=-1)))


class Model(nn.Module):
    """Hand-written, with dropout and a tied head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(48, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(32, 48, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=48,
        attention_dropout=0.1,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config)


MODELS = {"by hand": (Model, "model.blocks"), "llama": (llama, "model.model.layers")}


@pytest.fixture
def even_widths_lose(monkeypatch):
    """Layers that make 32 numbers do not win, all others do."""
    monkeypatch.setattr(
        fp8_layers, "timed", lambda shape, _: Times(2e-3, 3e-3 if shape.outputs == 32 else 1e-3)
    )


def made(build):
    torch.manual_seed(0)
    return build()


def patched(model, choice, blocks, base=AS_WRITTEN, **settings):
    best = msgspec.structs.replace(base, precision="fp8", **settings)
    lines = in_module(best, base, "cpu", blocks, keeps_buffers=False, linear=choice)
    assert lines.left == ()
    text = "\n".join((*lines.imports, *lines.body))
    ast.parse(text)
    exec(text, {"model": model})
    return text


def steps(model, called=None):
    """Losses and gradients of three steps, as a loop of the user's makes them, and the scales then."""
    torch.manual_seed(1)
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        logits = (called or model)(IDS)
        logits = getattr(logits, "logits", logits)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), IDS.flatten())
        loss.backward()
        seen += [loss.detach(), *(each.grad.clone() for each in model.parameters())]
        optimizer.step()
    return seen, states(model)


RECOMPUTED = {"checkpointing": "every-block", "attention": "sdpa-math"}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("by hand", {}),
        ("by hand", RECOMPUTED),
        ("llama", {}),
        *rows_in_full(
            [
                ("by hand", {"checkpointing": "every-block"}),
                ("by hand", {"attention": "sdpa-math"}),
                ("by hand", {"compile": "default"} | RECOMPUTED),
                ("llama", RECOMPUTED),
            ]
        ),
    ],
)
def test_a_patched_model_trains_as_with_the_lever(kind, settings, even_widths_lose):
    build, blocks = MODELS[kind]
    best = msgspec.structs.replace(AS_WRITTEN, precision="fp8", **settings)
    plain, model = made(build), made(build)
    keys = list(model.state_dict())
    applied = Applied(Live(model=plain, optimizer=torch.optim.SGD(plain.parameters())), best)
    try:
        theirs = steps(plain)
        patched(model, choice_in(plain), blocks, **settings)
        mine = steps(model)
    finally:
        applied.undo()
    assert len(mine[1]) == len(theirs[1]) > 0
    assert all(each.any() for each in mine[1])
    for found, wanted in zip(mine, theirs, strict=True):
        assert all(map(torch.equal, found, wanted))
    assert list(model.state_dict()) == keys


def test_the_autocast_of_a_step_is_left_to_it(even_widths_lose):
    base = msgspec.structs.replace(AS_WRITTEN, precision="bf16-mixed")
    best = msgspec.structs.replace(base, precision="fp8")
    plain, model = made(Model), made(Model)
    optimizer = torch.optim.SGD(plain.parameters())
    applied = Applied(Live(model=plain, optimizer=optimizer), best, base)

    def called(model):
        def call(ids):
            with torch.autocast("cpu", torch.bfloat16):
                return model(ids)

        return call

    theirs = steps(plain, called(plain))
    text = patched(model, choice_in(plain), "model.blocks", base)
    assert "autocast" not in text
    mine = steps(model, called(model))
    assert all(map(torch.equal, *(each[0] for each in (mine, theirs))))
    applied.undo()


def test_names_are_of_the_winners_alone(even_widths_lose):
    model = made(llama)
    applied = Applied(Live(model=model), msgspec.structs.replace(AS_WRITTEN, precision="fp8"))
    steps(model)
    assert choice_in(model).taken == (
        "model.layers.*.self_attn.k_proj",
        "model.layers.*.self_attn.v_proj",
        "model.layers.*.mlp.gate_proj",
        "model.layers.*.mlp.up_proj",
        "lm_head",
    )
    applied.undo()
