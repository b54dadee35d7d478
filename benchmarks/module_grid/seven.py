"""The first grid: seven architectures of transformers that prediction was not made from, in sizes that take
seconds each. Its steps have been measured since, and prediction was mended with them in view.

A case is one cell: an architecture, a pass, a precision, how it is compiled, and a size with its batch. The
sizes are drawn with a fixed seed, so that no cell is chosen for its result. Cases come in rounds: each has
every architecture, so that a run that is cut off still covers all of them.
"""

import random
from collections.abc import Iterator
from itertools import product

from module_grid.cases import Compiled, Config, GridCase, Pass, Precision, llama_like

SIZES: dict[str, tuple[Config, ...]] = {
    "gpt2": (
        {"n_embd": 768, "n_layer": 12, "n_head": 12},
        {"n_embd": 1024, "n_layer": 20, "n_head": 16},
        {"n_embd": 1280, "n_layer": 12, "n_head": 20},
    ),
    "llama": (
        llama_like(2048, 12, 32, 8, 5632, vocab_size=32_000),
        llama_like(1024, 20, 16, 16, 2816, vocab_size=32_000),
        llama_like(1536, 12, 12, 4, 6144, vocab_size=128_256),
    ),
    "qwen2": (
        llama_like(896, 24, 14, 2, 4864, vocab_size=151_936, tie_word_embeddings=True),
        llama_like(1536, 14, 12, 2, 8960, vocab_size=32_000),
        llama_like(2048, 8, 16, 4, 5504, vocab_size=64_000),
    ),
    "mistral": (
        llama_like(1536, 12, 12, 4, 5376, vocab_size=32_000, sliding_window=1024),
        llama_like(2048, 10, 16, 8, 7168, vocab_size=32_768, sliding_window=None),
    ),
    "gemma": (
        llama_like(2048, 8, 8, 1, 8192, vocab_size=64_000, head_dim=256),
        llama_like(1024, 16, 8, 4, 4096, vocab_size=32_000, head_dim=128),
    ),
    "phi": (
        llama_like(2048, 10, 32, 32, 8192, vocab_size=51_200),
        llama_like(1024, 20, 16, 16, 4096, vocab_size=51_200),
    ),
    "gpt_neox": (
        llama_like(1024, 16, 16, 16, 4096, vocab_size=50_304),
        llama_like(2048, 8, 16, 16, 8192, vocab_size=50_304),
    ),
}
MOST_COMPILED = 8
"""Layers of a model that is compiled whole: each is compiled for itself, for some seconds."""
N_ROUNDS = 6
"""Until each architecture has had its six eager cells twice."""
BATCHES = ((1, 512), (2, 2048), (4, 1024), (8, 1024), (16, 512), (1, 1024), (4, 512))
TINY: dict[str, Config] = {
    name: {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 97}
    if name == "gpt2"
    else llama_like(64, 2, 4, 2 if name not in ("phi", "gpt_neox") else 4, 96, vocab_size=97)
    for name in SIZES
}
"""For a trial without a GPU."""


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
