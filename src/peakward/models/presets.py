"""Model shapes by name, and the checks of a shape.

Peakward's own sizes share one architecture (RMSNorm, RoPE, SwiGLU, untied head, vocabulary of 10,000),
so that a study of size changes nothing else. The published ones have the figures of the `config.json`
named beside each.
"""

import itertools
import math
from collections.abc import Iterator

import msgspec

from peakward.records.errors import PeakwardError, look_up, quoted
from peakward.records.model_shape import ModelShape

LONGEST_NAME = 4096
"""Characters: "org/name", or what a folder is called."""


def derived_head_dim(d_model: int, n_heads: int) -> int:
    """The width of a head where it is not stated: d_model over n_heads.

    Raises:
        PeakwardError: The heads do not divide d_model.
    """
    if n_heads < 1 or d_model % n_heads:
        raise PeakwardError(
            f"expected a number of heads that divides d_model {d_model}, got {n_heads}: "
            "change either, or state head_dim"
        )
    return d_model // n_heads


def _own(name: str, n_layers: int, d_model: int, d_ff: int, n_heads: int) -> ModelShape:
    return ModelShape(
        name=name,
        vocab_size=10_000,
        n_layers=n_layers,
        d_model=d_model,
        d_ff=d_ff,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_dim=derived_head_dim(d_model, n_heads),
        max_seq_len=16_384,
    )


def _gpt2(name: str, n_layers: int, d_model: int, n_heads: int) -> ModelShape:
    return ModelShape(
        name=name,
        vocab_size=50_257,
        n_layers=n_layers,
        d_model=d_model,
        d_ff=4 * d_model,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_dim=derived_head_dim(d_model, n_heads),
        max_seq_len=1024,
        norm="layernorm",
        activation="gelu-tanh",  # transformers calls it gelu_new
        gated=False,
        positions="learned",
        tied_head=True,
        qkv_bias=True,
        bias=True,
    )


MODELS: tuple[ModelShape, ...] = (
    _own("tiny", 4, 256, 1024, 4),  # for a laptop's CPU
    _own("small", 12, 768, 3072, 12),
    _own("medium", 24, 1024, 4096, 16),
    _own("large", 36, 1280, 5120, 20),
    _own("xl", 48, 1600, 6400, 25),
    # 3.4 billion parameters with SwiGLU's three matrices. The name 2.7B counts two, and a larger vocabulary.
    _own("2.7B", 32, 2560, 10_240, 32),
    _gpt2("gpt2", 12, 768, 12),  # openai-community/gpt2
    _gpt2("gpt2-medium", 24, 1024, 16),  # openai-community/gpt2-medium
    _gpt2("gpt2-large", 36, 1280, 20),  # openai-community/gpt2-large
    _gpt2("gpt2-xl", 48, 1600, 25),  # openai-community/gpt2-xl
    ModelShape(  # meta-llama/Llama-2-7b-hf
        name="llama-2-7b",
        vocab_size=32_000,
        n_layers=32,
        d_model=4096,
        d_ff=11_008,
        n_heads=32,
        n_kv_heads=32,
        head_dim=128,
        max_seq_len=4096,
    ),
    ModelShape(  # meta-llama/Meta-Llama-3-8B
        name="llama-3-8b",
        vocab_size=128_256,
        n_layers=32,
        d_model=4096,
        d_ff=14_336,
        n_heads=32,
        n_kv_heads=8,
        head_dim=128,
        max_seq_len=8192,
        rope_theta=500_000.0,
    ),
    ModelShape(  # meta-llama/Meta-Llama-3-70B
        name="llama-3-70b",
        vocab_size=128_256,
        n_layers=80,
        d_model=8192,
        d_ff=28_672,
        n_heads=64,
        n_kv_heads=8,
        head_dim=128,
        max_seq_len=8192,
        rope_theta=500_000.0,
    ),
    # rope_scaling is left out: it changes the angles of long contexts, and no cost.
    ModelShape(  # meta-llama/Llama-3.1-405B
        name="llama-3.1-405b",
        vocab_size=128_256,
        n_layers=126,
        d_model=16_384,
        d_ff=53_248,
        n_heads=128,
        n_kv_heads=8,
        head_dim=128,
        max_seq_len=131_072,
        rope_theta=500_000.0,
    ),
    ModelShape(  # meta-llama/Llama-3.2-1B
        name="llama-3.2-1b",
        vocab_size=128_256,
        n_layers=16,
        d_model=2048,
        d_ff=8192,
        n_heads=32,
        n_kv_heads=8,
        head_dim=64,
        max_seq_len=131_072,
        rope_theta=500_000.0,
        tied_head=True,
    ),
    ModelShape(  # mistralai/Mistral-7B-v0.1
        name="mistral-7b",
        vocab_size=32_000,
        n_layers=32,
        d_model=4096,
        d_ff=14_336,
        n_heads=32,
        n_kv_heads=8,
        head_dim=128,
        max_seq_len=32_768,
        window=4096,
    ),
    ModelShape(  # mistralai/Mixtral-8x7B-v0.1
        name="mixtral-8x7b",
        vocab_size=32_000,
        n_layers=32,
        d_model=4096,
        d_ff=14_336,
        n_heads=32,
        n_kv_heads=8,
        head_dim=128,
        max_seq_len=32_768,
        n_experts=8,
        n_active_experts=2,
        rope_theta=1_000_000.0,
    ),
    ModelShape(  # HuggingFaceTB/SmolLM2-135M-Instruct
        name="smollm2-135m",
        vocab_size=49_152,
        n_layers=30,
        d_model=576,
        d_ff=1536,
        n_heads=9,
        n_kv_heads=3,
        head_dim=64,
        max_seq_len=8192,
        rope_theta=100_000.0,
        tied_head=True,
    ),
    ModelShape(  # Qwen/Qwen2.5-0.5B
        name="qwen2.5-0.5b",
        vocab_size=151_936,
        n_layers=24,
        d_model=896,
        d_ff=4864,
        n_heads=14,
        n_kv_heads=2,
        head_dim=64,
        max_seq_len=32_768,
        norm_eps=1e-6,
        rope_theta=1_000_000.0,
        tied_head=True,
        qkv_bias=True,
    ),
    ModelShape(  # Qwen/Qwen2.5-7B
        name="qwen2.5-7b",
        vocab_size=152_064,
        n_layers=28,
        d_model=3584,
        d_ff=18_944,
        n_heads=28,
        n_kv_heads=4,
        head_dim=128,
        max_seq_len=131_072,
        norm_eps=1e-6,
        rope_theta=1_000_000.0,
        qkv_bias=True,
    ),
)


def model(name: str) -> ModelShape:
    """The catalogued shape of that name.

    Raises:
        PeakwardError: no such model; names the nearest ones.
    """
    return look_up("a model", name, {shape.name: shape for shape in MODELS})


LARGEST = {
    "vocab_size": 2**24,
    "n_layers": 1000,
    "d_model": 131_072,
    "d_ff": 1_048_576,
    "n_heads": 1024,
    "n_kv_heads": 1024,
    "head_dim": 131_072,
    "max_seq_len": 2**24,
    "n_experts": 1000,
    "n_active_experts": 1000,
}
"""The largest accepted sizes of a shape that a user names: above any published model's."""


def validate(shape: ModelShape) -> None:
    """Refuses a shape that no model can have; it is called for shapes that a user assembled.

    `head_dim` stands on its own: the output projection takes n_heads · head_dim to d_model. Heads that
    do not divide d_model are an error only where head_dim is derived (`derived_head_dim`).

    Raises:
        PeakwardError: The first fault of the shape, and how to mend it.
    """
    try:
        msgspec.convert(msgspec.to_builtins(shape), ModelShape)
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as error:
        raise PeakwardError(
            f"expected a model shape, got one that is not: {error}: give that field its own type"
        ) from error
    fault = next(itertools.chain(_size_faults(shape), _fit_faults(shape)), None)
    if fault is not None:
        raise PeakwardError(fault)


def _size_faults(shape: ModelShape) -> Iterator[str]:
    if not shape.name or len(shape.name) > LONGEST_NAME or not shape.name.isprintable():
        yield f"expected a name that can stand in tables, got {quoted(shape.name)}: give another name"
    for field, largest in LARGEST.items():
        if (size := getattr(shape, field)) < 1:
            yield f"expected {field} of at least 1, got {size}: give a positive size"
        if size > largest:
            yield f"expected {field} of at most {largest:,}, got {size:,}: give a smaller size"
    for field in ("norm_eps", "rope_theta"):
        if not 0 < (value := getattr(shape, field)) < math.inf:
            yield f"expected a positive {field}, got {value}: give a finite number above 0"
    if shape.window is not None and shape.window < 1:
        yield (
            f"expected a window of at least 1, got {shape.window}: a token attends to itself; "
            "leave the window out to attend to all before it"
        )
    if shape.window is not None and shape.window > LARGEST["max_seq_len"]:
        yield (
            f"expected a window of at most {LARGEST['max_seq_len']:,}, got {shape.window:,}: leave it out "
            "to attend to all before it"
        )


def _fit_faults(shape: ModelShape) -> Iterator[str]:
    if shape.n_heads % shape.n_kv_heads:
        yield (
            f"expected n_kv_heads that divide n_heads {shape.n_heads}, got {shape.n_kv_heads}: "
            "each key-value head serves equally many query heads"
        )
    if shape.n_active_experts > shape.n_experts:
        yield (
            f"expected n_active_experts of at most n_experts {shape.n_experts}, "
            f"got {shape.n_active_experts}: a token goes through each expert once at most"
        )
    if shape.n_experts > 1 and shape.bias:
        yield (
            f"expected no bias in a shape of {shape.n_experts} experts, got one: "
            "leave it out, or take one expert"
        )
    if shape.positions == "rope" and shape.head_dim % 2:
        yield (
            f"expected an even head_dim under rope, got {shape.head_dim}: it rotates pairs; "
            "choose another head_dim or other positions"
        )
