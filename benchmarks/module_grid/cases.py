"""The grid: models of transformers that prediction was not made from, in sizes that take seconds each.

A case is one cell: an architecture, a pass, a precision, how it is compiled, and a size with its batch. The
sizes are drawn with a fixed seed, so that no cell is chosen for its result. Cases come in rounds: each has
every architecture, so that a run that is cut off still covers all of them.
"""

import random
from collections.abc import Iterator
from itertools import product
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor, nn

Precision = Literal["fp32", "bf16-mixed", "bf16"]
Compiled = Literal["none", "blocks", "model"]
Pass = Literal["forward", "train_step"]


def _llama_like(hidden: int, layers: int, heads: int, kv: int, ff: int, **more: Any) -> Any:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ff,
        **more,
    }


SIZES: dict[str, tuple[dict[str, Any], ...]] = {
    "gpt2": (
        {"n_embd": 768, "n_layer": 12, "n_head": 12},
        {"n_embd": 1024, "n_layer": 20, "n_head": 16},
        {"n_embd": 1280, "n_layer": 12, "n_head": 20},
    ),
    "llama": (
        _llama_like(2048, 12, 32, 8, 5632, vocab_size=32_000),
        _llama_like(1024, 20, 16, 16, 2816, vocab_size=32_000),
        _llama_like(1536, 12, 12, 4, 6144, vocab_size=128_256),
    ),
    "qwen2": (
        _llama_like(896, 24, 14, 2, 4864, vocab_size=151_936, tie_word_embeddings=True),
        _llama_like(1536, 14, 12, 2, 8960, vocab_size=32_000),
        _llama_like(2048, 8, 16, 4, 5504, vocab_size=64_000),
    ),
    "mistral": (
        _llama_like(1536, 12, 12, 4, 5376, vocab_size=32_000, sliding_window=1024),
        _llama_like(2048, 10, 16, 8, 7168, vocab_size=32_768, sliding_window=None),
    ),
    "gemma": (
        _llama_like(2048, 8, 8, 1, 8192, vocab_size=64_000, head_dim=256),
        _llama_like(1024, 16, 8, 4, 4096, vocab_size=32_000, head_dim=128),
    ),
    "phi": (
        _llama_like(2048, 10, 32, 32, 8192, vocab_size=51_200),
        _llama_like(1024, 20, 16, 16, 4096, vocab_size=51_200),
    ),
    "gpt_neox": (
        _llama_like(1024, 16, 16, 16, 4096, vocab_size=50_304),
        _llama_like(2048, 8, 16, 16, 8192, vocab_size=50_304),
    ),
}
MOST_COMPILED = 8
"""Layers of a model that is compiled whole: each is compiled for itself, for some seconds."""
N_ROUNDS = 6
"""Until each architecture has had its six eager cells twice."""
BATCHES = ((1, 512), (2, 2048), (4, 1024), (8, 1024), (16, 512), (1, 1024), (4, 512))
TINY: dict[str, dict[str, Any]] = {
    name: {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 97}
    if name == "gpt2"
    else _llama_like(64, 2, 4, 2 if name not in ("phi", "gpt_neox") else 4, 96, vocab_size=97)
    for name in SIZES
}
"""For a trial without a GPU."""


class GridCase(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the grid."""

    kind: str
    """transformers' name of the architecture."""
    config: dict[str, Any]
    pass_: Pass = msgspec.field(name="pass")
    precision: Precision
    compiled: Compiled
    batch: int
    seq_len: int

    @property
    def name(self) -> str:
        """For a line of output."""
        width = self.config.get("hidden_size") or self.config["n_embd"]
        layers = self.config.get("num_hidden_layers") or self.config["n_layer"]
        size = f"{layers} × {width}, {self.batch} × {self.seq_len}"
        return f"{self.kind} {size}, {self.precision}, {self.pass_}, compiled: {self.compiled}"

    @property
    def autocast(self) -> torch.dtype | None:
        """The type of mixed precision."""
        return torch.bfloat16 if self.precision == "bf16-mixed" else None


def grid(*, tiny: bool = False) -> list[GridCase]:
    """Rounds of two eager cases and a compiled one for every architecture."""
    draw = random.Random(27)
    eager = {kind: list(_cells(draw, ("none",))) * 2 for kind in SIZES}
    compiled = {kind: list(_cells(draw, ("blocks", "model"))) for kind in SIZES}
    ordered: list[GridCase] = []
    for i in range(N_ROUNDS):
        cells = {kind: (*eager[kind][2 * i : 2 * i + 2], compiled[kind][i]) for kind in SIZES}
        for place in range(3):
            for kind in SIZES:
                if place < len(cells[kind]):
                    ordered.append(_case(draw, kind, cells[kind][place], tiny=tiny))
    return ordered


_Cell = tuple[Compiled, Precision, Pass]


def _cells(draw: random.Random, ways: tuple[Compiled, ...]) -> Iterator[_Cell]:
    precisions: tuple[Precision, ...] = ("fp32", "bf16-mixed", "bf16")
    passes: tuple[Pass, ...] = ("forward", "train_step")
    cells = list(product(ways, precisions, passes))
    draw.shuffle(cells)
    yield from cells


def _case(draw: random.Random, kind: str, cell: _Cell, *, tiny: bool) -> GridCase:
    way, precision, pass_ = cell
    config, (batch, seq_len) = draw.choice(SIZES[kind]), draw.choice(BATCHES)
    if way == "model":
        layers = "n_layer" if kind == "gpt2" else "num_hidden_layers"
        config = config | {layers: min(MOST_COMPILED, config[layers])}
    if tiny:
        config, (batch, seq_len) = TINY[kind], (2, 32)
    return GridCase(
        kind=kind,
        config=config,
        pass_=pass_,
        precision=precision,
        compiled=way,
        batch=batch,
        seq_len=seq_len,
    )


def built(case: GridCase, device: str) -> nn.Module:
    """The model as transformers makes it, in its mode and type, compiled where the case is."""
    from transformers import AutoConfig, AutoModelForCausalLM

    more = {} if "max_position_embeddings" in case.config else _positions(case)
    config = AutoConfig.for_model(case.kind, **case.config, **more)
    dtype = torch.bfloat16 if case.precision == "bf16" else torch.float32
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.train(case.pass_ == "train_step")
    for part in parts(case, model):
        part.compile()
    return model


def parts(case: GridCase, model: nn.Module) -> list[nn.Module]:
    """The parts of the model that are compiled, each by itself."""
    from peakward.lab.models.given_module import repeated_blocks

    if case.compiled == "model":
        return [model]
    return list(repeated_blocks(model) or ()) if case.compiled == "blocks" else []


def _positions(case: GridCase) -> dict[str, int]:
    least = max(2048, case.seq_len)
    return {"n_positions": least} if case.kind == "gpt2" else {"max_position_embeddings": least}


def inputs(case: GridCase, device: str) -> dict[str, Tensor | bool]:
    """What the model is called with: ids, and where it trains the same as labels."""
    ids = torch.zeros(case.batch, case.seq_len, dtype=torch.int64)
    if device != "cpu":
        vocab = case.config.get("vocab_size", 50_257)
        ids = torch.randint(vocab, ids.shape, device=device)
    given: dict[str, Tensor | bool] = {"input_ids": ids, "use_cache": False}
    if case.pass_ == "train_step":
        given["labels"] = ids.clone()
    return given
