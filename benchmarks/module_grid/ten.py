"""The blind grid: ten architectures of transformers that no grid before had and no test of prediction uses,
in their published proportions with fewer layers. Nothing is mended with its times in view.

Each architecture has three eager cases, one a precision, and one compiled by block; four are also compiled
as a whole. Sizes, passes, batches and the order of precisions are drawn with a fixed seed. Cases come in
rounds: each has every architecture, so that a run that is cut off still covers all of them.
"""

import random

from module_grid.cases import Compiled, Config, GridCase, Pass, Precision, llama_like

_ALONE: Config = {"intermediate_size": 16_384, "vocab_size": 262_144}
"""Persimmon has no grouped heads."""


def _mixture(width: int, shared: int, n: int) -> Config:
    return {
        "moe_intermediate_size": width,
        "shared_expert_intermediate_size": shared,
        "num_experts": n,
        "num_experts_per_tok": 4,
    }


CONFIGS: dict[str, tuple[Config, Config]] = {
    "arcee": (
        llama_like(2560, 6, 20, 4, 18_432, vocab_size=128_000),
        llama_like(1024, 12, 8, 2, 7168, vocab_size=128_000),
    ),
    "exaone4": (
        llama_like(2048, 8, 32, 8, 4096, vocab_size=102_400),
        llama_like(1024, 12, 16, 4, 2048, vocab_size=102_400),
    ),
    "apertus": (
        llama_like(4096, 3, 32, 8, 21_504, vocab_size=131_072),
        llama_like(1024, 12, 8, 2, 5376, vocab_size=131_072),
    ),
    "qwen2_moe": (
        llama_like(2048, 4, 16, 16, 5632, vocab_size=151_936, **_mixture(1408, 5632, 60)),
        llama_like(1024, 6, 8, 8, 2816, vocab_size=151_936, **_mixture(704, 2816, 16)),
    ),
    "helium": (
        llama_like(2560, 6, 20, 20, 7040, head_dim=128, vocab_size=48_000),
        llama_like(1024, 12, 8, 8, 2816, head_dim=128, vocab_size=48_000),
    ),
    "persimmon": (
        {**_ALONE, "hidden_size": 4096, "num_hidden_layers": 3, "num_attention_heads": 64},
        {**_ALONE, "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16}
        | {"intermediate_size": 4096},
    ),
    "olmo3": (
        llama_like(4096, 4, 32, 32, 11_008, vocab_size=100_278, sliding_window=1024),
        llama_like(1024, 12, 8, 8, 2752, vocab_size=100_278, sliding_window=256),
    ),
    "ernie4_5": (
        llama_like(2048, 8, 16, 2, 6144, head_dim=128, vocab_size=103_424),
        llama_like(1024, 12, 16, 2, 3072, head_dim=128, vocab_size=103_424),
    ),
    "biogpt": (
        llama_like(1600, 10, 25, 25, 6400, vocab_size=57_717),
        llama_like(1024, 12, 16, 16, 4096, vocab_size=42_384),
    ),
    "seed_oss": (
        llama_like(5120, 2, 80, 8, 27_648, head_dim=128, vocab_size=155_136),
        llama_like(1024, 12, 16, 2, 5504, head_dim=128, vocab_size=155_136),
    ),
}
"""Arcee AFM-4.5B, EXAONE 4.0 1.2B, Apertus-8B, Qwen1.5-MoE-A2.7B, Helium-1 2B, Persimmon-8B, OLMo-3-7B,
ERNIE 4.5 0.3B and twice its width, BioGPT large and base, Seed-OSS-36B; and a smaller one of each, whose
steps a host may bound."""
WHOLE = ("arcee", "helium", "olmo3", "biogpt")
"""Also compiled as a whole."""
LAYERS_WHOLE = 3
"""Layers of a model that is compiled whole: each is compiled for itself, for some seconds."""
BATCHES = ((1, 256), (1, 1024), (2, 1024), (4, 512), (1, 2048), (8, 512), (2, 2048), (16, 512))
LARGEST_FP32 = 2048
"""Tokens of a step in fp32 at most: six models of 8,192 would take a second a step."""
TINY: Config = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 96,
    "num_experts": 8,
    "sliding_window": 16,
    "vocab_size": 97,
}
"""In the place of the sizes that a configuration has, for a trial without a GPU."""


def grid(*, tiny: bool = False) -> list[GridCase]:
    """Three rounds of eager cases, between them one compiled by block and one compiled whole."""
    draw = random.Random(10)
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
        config = config | {"num_hidden_layers": LAYERS_WHOLE}
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
