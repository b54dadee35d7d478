"""The blind grid: nine architectures of transformers that the first grid does not have and no test of
prediction uses, in their published proportions with fewer layers. Nothing is mended with its times in view.

Each architecture has three eager cases, one a precision, and one compiled by block; four are also compiled
as a whole. Sizes, passes, batches and the order of precisions are drawn with a fixed seed. Cases come in
rounds: each has every architecture, so that a run that is cut off still covers all of them.
"""

import random

from module_grid.cases import Compiled, Config, GridCase, Pass, Precision, llama_like

GRANITE: Config = {
    "tie_word_embeddings": True,
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.015625,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}


def _falcon(width: int, layers: int, heads: int) -> Config:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    return dict(zip(names, (width, layers, heads, 65_024), strict=True))


def _bloom(width: int, layers: int) -> Config:
    return {"hidden_size": width, "n_layer": layers, "n_head": 16, "vocab_size": 250_880}


def _opt(width: int, layers: int, heads: int) -> Config:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "ffn_dim": 4 * width,
        "vocab_size": 50_272,
        "word_embed_proj_dim": width,
    }


CONFIGS: dict[str, tuple[Config, Config]] = {
    "olmo2": (
        llama_like(2048, 6, 16, 16, 8192, vocab_size=100_352),
        llama_like(1024, 12, 16, 16, 4096, vocab_size=100_352),
    ),
    "phi3": (
        llama_like(3072, 4, 32, 32, 8192, vocab_size=32_064, pad_token_id=32_000),
        llama_like(1024, 12, 16, 16, 2816, vocab_size=32_064, pad_token_id=32_000),
    ),
    "stablelm": (
        llama_like(2048, 6, 32, 32, 5632, vocab_size=100_352, use_qkv_bias=True),
        llama_like(1024, 12, 16, 16, 2816, vocab_size=50_304),
    ),
    "falcon": (_falcon(2048, 6, 32), _falcon(1024, 12, 16)),
    "starcoder2": (
        llama_like(3072, 4, 24, 2, 12_288, vocab_size=49_152),
        llama_like(1024, 12, 8, 2, 4096, vocab_size=49_152),
    ),
    "cohere": (
        llama_like(2048, 5, 16, 4, 7168, vocab_size=128_000),
        llama_like(1024, 10, 8, 2, 3584, vocab_size=128_000),
    ),
    "granite": (
        llama_like(2048, 8, 32, 8, 8192, vocab_size=49_155, **GRANITE),
        llama_like(1024, 12, 16, 4, 4096, vocab_size=49_155, **GRANITE),
    ),
    "bloom": (_bloom(1536, 6), _bloom(1024, 10)),
    "opt": (_opt(2048, 8, 32), _opt(768, 12, 12)),
}
"""OLMo-2-1B, Phi-3-mini, StableLM-2-1.6B, Falcon's (one head of keys and values, attention beside the
network) at 2,048, StarCoder2-3B, Command R's at 2,048, Granite-3-2B, BLOOM-1.1B, OPT-1.3B; and a smaller one
of each, whose steps a host may bound: BLOOM-560M, OPT-125M, the others of their proportions at 1,024."""
WHOLE = ("phi3", "stablelm", "falcon", "granite")
"""Also compiled as a whole."""
LAYERS_WHOLE = 3
"""Layers of a model that is compiled whole: each is compiled for itself, for some seconds."""
BATCHES = ((1, 256), (1, 1024), (2, 1024), (4, 512), (1, 2048), (8, 512), (2, 2048), (16, 512))
LARGEST_FP32 = 2048
"""Tokens of a step in fp32 at most: six models of 8,192 would take a second a step."""
TINY: Config = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "ffn_dim": 96,
    "word_embed_proj_dim": 64,
    "vocab_size": 97,
    "pad_token_id": None,
}
"""In the place of the sizes that a configuration has, for a trial without a GPU."""


def grid(*, tiny: bool = False) -> list[GridCase]:
    """Three rounds of eager cases, between them one compiled by block and one compiled whole."""
    draw = random.Random(28)
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
        layers = "n_layer" if "n_layer" in config else "num_hidden_layers"
        config = config | {layers: LAYERS_WHOLE}
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
