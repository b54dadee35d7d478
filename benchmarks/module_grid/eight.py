"""The blind grid: eight architectures of transformers that no grid before had and no test of prediction uses,
in their published proportions with fewer layers. Nothing is mended with its times in view.

Each architecture has three eager cases, one a precision, and one compiled by block; four are also compiled
as a whole. Sizes, passes, batches and the order of precisions are drawn with a fixed seed. Cases come in
rounds: each has every architecture, so that a run that is cut off still covers all of them.
"""

import random

from module_grid.cases import Compiled, Config, GridCase, Pass, Precision, llama_like


def _gpt_like(width: int, layers: int, heads: int, words: int, **more: int) -> Config:
    names = ("n_embd", "n_layer", "n_head", "vocab_size")
    return dict(zip(names, (width, layers, heads, words), strict=True)) | more


def _mpt(width: int, layers: int, heads: int) -> Config:
    return {"d_model": width, "n_layers": layers, "n_heads": heads, "vocab_size": 50_432}


CONFIGS: dict[str, tuple[Config, Config]] = {
    "qwen3": (
        llama_like(2048, 6, 16, 8, 6144, head_dim=128, vocab_size=151_936),
        llama_like(1024, 12, 16, 8, 3072, head_dim=128, vocab_size=151_936),
    ),
    "glm4": (
        llama_like(4096, 3, 32, 2, 13_696, head_dim=128, vocab_size=151_552),
        llama_like(1024, 12, 8, 2, 3424, head_dim=128, vocab_size=151_552),
    ),
    "gptj": (
        _gpt_like(4096, 4, 16, 50_400, rotary_dim=64),
        _gpt_like(1024, 12, 16, 50_400, rotary_dim=32),
    ),
    "nemotron": (
        llama_like(3072, 4, 24, 8, 9216, head_dim=128, vocab_size=131_072),
        llama_like(1024, 12, 8, 2, 4096, head_dim=128, vocab_size=131_072),
    ),
    "smollm3": (
        llama_like(2048, 8, 16, 4, 11_008, vocab_size=128_256, pad_token_id=128_004),
        llama_like(1024, 12, 16, 4, 4096, vocab_size=128_256, pad_token_id=128_004),
    ),
    "gpt_bigcode": (
        _gpt_like(2048, 8, 16, 49_152, n_inner=8192),
        _gpt_like(768, 12, 12, 49_152, n_inner=3072),
    ),
    "olmo": (
        llama_like(2048, 6, 16, 16, 8192, vocab_size=50_304),
        llama_like(1024, 12, 16, 16, 4096, vocab_size=50_304),
    ),
    "mpt": (_mpt(2048, 8, 16), _mpt(768, 12, 12)),
}
"""Qwen3-1.7B, GLM-4-9B, GPT-J-6B, Minitron-4B, SmolLM3-3B, SantaCoder, OLMo-1B, MPT-1B; and a smaller one of
each, whose steps a host may bound: Qwen3-0.6B, the others of their proportions at 1,024 or 768."""
WHOLE = ("qwen3", "nemotron", "gpt_bigcode", "olmo")
"""Also compiled as a whole."""
LAYERS_WHOLE = 3
"""Layers of a model that is compiled whole: each is compiled for itself, for some seconds."""
BATCHES = ((1, 256), (1, 1024), (2, 1024), (4, 512), (1, 2048), (8, 512), (2, 2048), (16, 512))
LARGEST_FP32 = 2048
"""Tokens of a step in fp32 at most: six models of 8,192 would take a second a step."""
LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
"""Names of the number of layers."""
TINY: Config = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_embd": 64,
    "n_inner": 96,
    "rotary_dim": 8,
    "d_model": 64,
    "n_layers": 2,
    "n_heads": 4,
    "head_dim": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 97,
    "pad_token_id": None,
}
"""In the place of the sizes that a configuration has, for a trial without a GPU."""


def grid(*, tiny: bool = False) -> list[GridCase]:
    """Three rounds of eager cases, between them one compiled by block and one compiled whole."""
    draw = random.Random(29)
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
        layers = next(name for name in LAYERS if name in config)
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
