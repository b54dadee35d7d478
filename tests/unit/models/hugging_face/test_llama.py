"""Llama and its relatives, against transformers' classes of them."""

import pytest
import transformers

from peakward.models.hugging_face.shape import shape_of

SMALL = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": None,  # Phi-3's own lies outside so small a vocabulary.
}


def of(kind: str, **settings):
    return shape_of({"model_type": kind, **SMALL, **settings}, "mine")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (transformers.LlamaConfig, {}),
        (transformers.LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
        (transformers.LlamaConfig, {"head_dim": 20, "tie_word_embeddings": True}),
        (transformers.LlamaConfig, {"num_key_value_heads": None}),
        (transformers.LlamaConfig, {"sliding_window": 8}),
        (transformers.MistralConfig, {}),
        (transformers.MistralConfig, {"sliding_window": None, "head_dim": 8}),
        (transformers.MixtralConfig, {}),
        (transformers.MixtralConfig, {"num_local_experts": 3, "num_experts_per_tok": 1}),
        (transformers.MixtralConfig, {"num_experts": 4, "sliding_window": 6}),
        (transformers.Phi3Config, {}),
        (transformers.Phi3Config, {"sliding_window": 6, "num_key_value_heads": None}),
        (transformers.Qwen2Config, {}),
        (transformers.Qwen2Config, {"tie_word_embeddings": True, "head_dim": 20}),
        (transformers.Qwen2Config, {"use_sliding_window": True, "max_window_layers": 0}),
        (transformers.Qwen2Config, {"use_sliding_window": True, "max_window_layers": 3}),
        (transformers.Starcoder2Config, {}),
        (transformers.Starcoder2Config, {"use_bias": False, "sliding_window": 6}),
    ],
    ids=lambda each: getattr(each, "model_type", None) or str(each),
)
def test_small_models_are_theirs(agrees, kind, settings):
    agrees(kind, {**SMALL, **settings})


@pytest.mark.parametrize(
    "kind",
    [
        transformers.LlamaConfig,
        transformers.MistralConfig,
        transformers.MixtralConfig,
        transformers.Phi3Config,
        transformers.Qwen2Config,
        transformers.Starcoder2Config,
    ],
    ids=lambda kind: kind.model_type,
)
def test_what_a_configuration_leaves_out_is_theirs(agrees, kind):
    """A number of layers is stated: building 32 of each takes seconds and tells no more."""
    agrees(kind, {"num_hidden_layers": 1})
    layers = kind().num_hidden_layers
    assert shape_of({"model_type": kind.model_type}, "mine").n_layers == layers


def test_rotation_is_read_as_versions_before_and_since_5_write_it():
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    before = of("llama", rope_theta=5e5, rope_scaling=scaling)
    since = of("llama", rope_parameters={**scaling, "rope_theta": 5e5})
    assert before == since == of("llama", rope_theta=500_000)
    theirs = transformers.LlamaConfig(**SMALL, rope_theta=5e5, rope_scaling=scaling)
    assert shape_of(theirs.to_dict(), "mine") == before
    assert before.rope_theta == theirs.rope_parameters["rope_theta"] == 5e5


def test_what_is_left_out_of_the_rotation_is_theirs():
    for kind in (transformers.LlamaConfig, transformers.MixtralConfig, transformers.Qwen2Config):
        expected = kind().rope_parameters["rope_theta"]
        assert shape_of({"model_type": kind.model_type}, "mine").rope_theta == expected


def test_windows():
    assert of("mistral").window == 4096
    assert of("mistral", sliding_window=None).window is None
    assert of("llama", sliding_window=9).window is None
    assert of("qwen2", sliding_window=9).window is None
    windowed = {"use_sliding_window": True, "sliding_window": 9}
    assert of("qwen2", **windowed, max_window_layers=0).window == 9
    assert of("qwen2", **windowed, max_window_layers=3).window is None
    assert of("qwen2", **windowed, layer_types=["sliding_attention"] * 3).window == 9


def test_starcoder2_has_layernorm_and_a_plain_network():
    shape = of("starcoder2", norm_epsilon=1e-3)
    assert (shape.norm, shape.norm_eps, shape.gated, shape.positions) == (
        "layernorm",
        1e-3,
        False,
        "rope",
    )
