"""The blind grid: ten architectures of transformers that no grid before had and no test of prediction uses,
in their published proportions with fewer layers. Nothing is mended with its times in view; once something
is, other architectures take their place here.

Each architecture has three eager cases, one a precision, and one compiled by block; four are also compiled
as a whole. Sizes, passes, batches and the order of precisions are drawn with a fixed seed. Cases come in
rounds: each has every architecture, so that a run that is cut off still covers all of them.
"""

import random
from typing import Any

from module_grid.cases import Compiled, Config, GridCase, Pass, Precision, llama_like


def _mixture(n: int) -> Config:
    return {"num_local_experts": n, "num_experts_per_tok": 8}


def _gpt_like(width: int, layers: int, heads: int, **more: Any) -> Config:
    return {"n_embd": width, "n_layer": layers, "n_head": heads, **more}


def _of_xglm(width: int, layers: int, heads: int) -> Config:
    sizes = {"d_model": width, "num_layers": layers, "attention_heads": heads}
    return {**sizes, "ffn_dim": 4 * width, "vocab_size": 256_008}


CONFIGS: dict[str, tuple[Config, Config]] = {
    "cohere2": (
        llama_like(4096, 3, 32, 8, 14_336, vocab_size=256_000, sliding_window=4096),
        llama_like(1024, 10, 8, 2, 3584, vocab_size=256_000, sliding_window=256),
    ),
    "gemma3_text": (
        llama_like(2560, 6, 8, 4, 10_240, head_dim=256, vocab_size=262_208, sliding_window=1024),
        llama_like(1152, 12, 4, 1, 6912, head_dim=256, vocab_size=262_144, sliding_window=512),
    ),
    "glm": (
        llama_like(4096, 3, 32, 2, 13_696, head_dim=128, vocab_size=151_552),
        llama_like(1024, 12, 8, 2, 3424, head_dim=128, vocab_size=151_552),
    ),
    "hunyuan_v1_dense": (
        llama_like(2048, 8, 16, 4, 6144, head_dim=128, vocab_size=120_818),
        llama_like(1024, 12, 16, 8, 3584, head_dim=128, vocab_size=120_818),
    ),
    "codegen": (
        _gpt_like(2560, 6, 32, rotary_dim=64, vocab_size=51_200),
        _gpt_like(1024, 12, 16, rotary_dim=32, vocab_size=51_200),
    ),
    "diffllama": (
        llama_like(2048, 8, 32, 8, 8192, vocab_size=32_000),
        llama_like(1024, 12, 16, 4, 4096, vocab_size=32_000),
    ),
    "xglm": (_of_xglm(2048, 6, 16), _of_xglm(1024, 12, 16)),
    "granitemoe": (
        llama_like(1536, 8, 24, 8, 512, vocab_size=49_155, **_mixture(40)),
        llama_like(1024, 8, 16, 8, 512, vocab_size=49_155, **_mixture(32)),
    ),
    "nanochat": (
        llama_like(2048, 8, 16, 16, 8192, vocab_size=65_536),
        llama_like(1280, 10, 10, 10, 5120, vocab_size=65_536),
    ),
    "vaultgemma": (
        llama_like(1152, 12, 4, 4, 6912, head_dim=256, vocab_size=256_000, sliding_window=512),
        llama_like(768, 12, 4, 4, 4608, head_dim=192, vocab_size=256_000, sliding_window=256),
    ),
}
"""Command R7B, Gemma 3 4B and 1B, GLM-4 9B, Hunyuan 1.8B and 0.5B, CodeGen 2B and 350M, DiffLlama, XGLM 1.7B
and 564M, Granite 3.0 3B-A800M and 1B-A400M, nanochat, VaultGemma 1B; and smaller ones, whose steps a host may
bound."""
WHOLE = ("glm", "hunyuan_v1_dense", "diffllama", "xglm")
"""Also compiled as a whole."""
N_LAYERS = ("num_hidden_layers", "num_layers")
LAYERS_WHOLE = 3
"""Layers of a model that is compiled whole: each is compiled for itself, for some seconds."""
BATCHES = ((1, 256), (1, 1024), (2, 1024), (4, 512), (1, 2048), (8, 512), (2, 2048), (16, 512))
LARGEST_FP32 = 2048
"""Tokens of a step in fp32 at most: six models of 8,192 would take a second a step."""
TINY: Config = {
    "hidden_size": 64,
    "n_embd": 64,
    "d_model": 64,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "num_layers": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "attention_heads": 4,
    "head_dim": 16,
    "rotary_dim": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "ffn_dim": 96,
    "num_local_experts": 8,
    "sliding_window": 16,
    "vocab_size": 97,
}
"""In the place of the sizes that a configuration has, for a trial without a GPU."""


def grid(*, tiny: bool = False) -> list[GridCase]:
    """Three rounds of eager cases, between them one compiled by block and one compiled whole."""
    draw = random.Random(11)
    orders = {kind: draw.sample(_PRECISIONS, 3) for kind in CONFIGS}
    eager = [
        [_case(draw, kind, "none", orders[kind][i], tiny=tiny) for kind in CONFIGS]
        for i in range(3)
    ]
    blocks, whole = (
        [_case(draw, kind, way, draw.choice(_PRECISIONS), tiny=tiny) for kind in kinds]
        for way, kinds in (("blocks", CONFIGS), ("model", WHOLE))
    )
    return [*eager[0], *blocks, *eager[1], *whole, *eager[2]]


_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16-mixed", "bf16")
_PASSES: tuple[Pass, ...] = ("forward", "train_step")


def _case(
    draw: random.Random, kind: str, way: Compiled, precision: Precision, *, tiny: bool
) -> GridCase:
    most = LARGEST_FP32 if precision == "fp32" else max(b * s for b, s in BATCHES)
    batch, seq_len = draw.choice([each for each in BATCHES if each[0] * each[1] <= most])
    config = draw.choice(CONFIGS[kind])
    if way == "model":
        config = config | {name: LAYERS_WHOLE for name in N_LAYERS if name in config}
    if tiny:
        config = config | {name: size for name, size in TINY.items() if name in config}
        batch, seq_len = 2, 32
    return GridCase(
        kind=kind,
        config=config,
        pass_=draw.choice(_PASSES),
        precision=precision,
        compiled=way,
        batch=batch,
        seq_len=seq_len,
    )
