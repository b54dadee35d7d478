"""The blind grid: ten architectures of transformers that no grid before had and no test of prediction uses,
in about their published proportions with fewer layers. Nothing is mended with its times in view; once
something is, other architectures take their place here.

Each architecture has three eager cases, one a precision, and one compiled by block; four are also compiled
as a whole. Sizes, passes, batches and the order of precisions are drawn with a fixed seed. Cases come in
rounds: each has every architecture, so that a run that is cut off still covers all of them.
"""

import random

from module_grid.cases import Compiled, Config, GridCase, Pass, Precision, llama_like


def _neox_like(width: int, layers: int, heads: int) -> Config:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {**sizes, "vocab_size": 32_000}


def _of_ctrl(width: int, layers: int, heads: int, ff: int) -> Config:
    return {"n_embd": width, "n_layer": layers, "n_head": heads, "dff": ff, "vocab_size": 246_534}


CONFIGS: dict[str, tuple[Config, Config]] = {
    "ministral": (
        llama_like(4096, 3, 32, 8, 12_288, head_dim=128, vocab_size=131_072, sliding_window=1024),
        llama_like(1024, 12, 8, 2, 3072, head_dim=128, vocab_size=131_072, sliding_window=256),
    ),
    "ministral3": (
        llama_like(4096, 3, 32, 8, 14_336, head_dim=128, vocab_size=131_072),
        llama_like(1024, 12, 8, 2, 3584, head_dim=128, vocab_size=131_072),
    ),
    "cwm": (
        llama_like(3072, 6, 24, 4, 10_752, head_dim=128, vocab_size=128_256, sliding_window=1024),
        llama_like(1024, 12, 8, 2, 3584, head_dim=128, vocab_size=128_256, sliding_window=256),
    ),
    "jais2": (
        llama_like(3328, 3, 26, 26, 26_624, head_dim=128, vocab_size=150_272),
        llama_like(1024, 12, 8, 8, 8192, head_dim=128, vocab_size=150_272),
    ),
    "bitnet": (
        llama_like(2560, 6, 20, 5, 6912, vocab_size=128_256),
        llama_like(1024, 12, 8, 2, 2816, vocab_size=128_256),
    ),
    "gpt_neox_japanese": (_neox_like(2560, 6, 32), _neox_like(1024, 12, 16)),
    "ctrl": (_of_ctrl(1280, 8, 16, 8192), _of_ctrl(768, 12, 12, 4864)),
    "qwen3_moe": (
        llama_like(2048, 4, 32, 4, 6144, head_dim=128, vocab_size=151_936, num_experts=64),
        llama_like(1024, 8, 16, 2, 3072, head_dim=64, vocab_size=151_936, num_experts=32),
    ),
    "olmoe": (
        llama_like(2048, 6, 16, 16, 1024, vocab_size=50_304, num_experts=64),
        llama_like(1024, 8, 8, 8, 512, vocab_size=50_304, num_experts=32),
    ),
    "phimoe": (
        llama_like(2048, 4, 16, 4, 3200, vocab_size=32_064, num_local_experts=16),
        llama_like(1024, 8, 8, 2, 1600, vocab_size=32_064, num_local_experts=16),
    ),
}
"""In the proportions of Ministral 8B, Ministral 3 8B, CWM 32B, Jais 2 8B, BitNet 2B, GPT-NeoX Japanese 2.7B,
CTRL, Qwen3 30B-A3B, OLMoE 7B and Phi-3.5-MoE, some with fewer experts, narrower or with a shorter window; and
smaller ones, whose steps a host may bound."""
WHOLE = ("ministral3", "cwm", "jais2", "bitnet")
"""Also compiled as a whole."""
N_LAYERS = ("num_hidden_layers", "n_layer")
LAYERS_WHOLE = 3
"""Layers of a model that is compiled whole: each is compiled for itself, for some seconds."""
BATCHES = ((1, 256), (1, 1024), (2, 1024), (4, 512), (1, 2048), (8, 512), (2, 2048), (16, 512))
LARGEST_FP32 = 2048
"""Tokens of a step in fp32 at most: six models of 8,192 would take a second a step."""
TINY: Config = {
    "hidden_size": 64,
    "n_embd": 64,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "head_dim": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "dff": 96,
    "num_experts": 8,
    "num_local_experts": 8,
    "sliding_window": 16,
    "vocab_size": 97,
}
"""In the place of the sizes that a configuration has, for a trial without a GPU."""


def grid(*, tiny: bool = False) -> list[GridCase]:
    """Three rounds of eager cases, between them one compiled by block and one compiled whole."""
    draw = random.Random(12)
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
