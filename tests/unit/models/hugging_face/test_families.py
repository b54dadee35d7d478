"""Activations by their names in transformers."""

import pytest
import torch
import transformers
from transformers.activations import ACT2FN

from peakward.lab.models import decoder
from peakward.models.hugging_face.families import ACTIVATIONS, activation
from peakward.models.hugging_face.shape import shape_of
from peakward.records.errors import PeakwardError


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_ours_computes_what_theirs_does(name):
    x = torch.linspace(-4.0, 4.0, 101, dtype=torch.float64)
    torch.testing.assert_close(decoder.ACTIVATIONS[activation(name)](x), ACT2FN[name](x))


def test_an_activation_of_no_shape_is_refused():
    with pytest.raises(PeakwardError, match=r"expected an activation of silu, .*got 'relu2'"):
        activation("relu2")


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
    assert of("mistral", layer_types=["full_attention"] * 2).window is None
    assert of("mistral", layer_types=["sliding_attention"] * 2).window == 4096
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


SETTINGS = [
    {},
    {"n_layer": 3, "n_embd": 96, "n_head": 6, "n_inner": 100, "n_positions": 32},
    {"n_layer": 2, "vocab_size": 77, "tie_word_embeddings": False},
    {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_gpt2_is_theirs(agrees, settings):
    agrees(transformers.GPT2Config, settings)


@pytest.mark.parametrize("settings", [*SETTINGS, {"n_layer": 2, "multi_query": False}], ids=str)
def test_starcoder_is_theirs(agrees, settings):
    agrees(transformers.GPTBigCodeConfig, settings)


def test_starcoder_has_one_head_of_keys_and_values():
    shape = shape_of({"model_type": "gpt_bigcode"}, "mine")
    assert (shape.n_heads, shape.n_kv_heads, shape.activation) == (12, 1, "gelu-tanh")


def test_an_alias_is_taken_before_the_name_as_theirs_is():
    both = {"hidden_size": 96, "n_embd": 768, "n_layer": 1}
    assert transformers.GPT2Config.from_dict(dict(both)).n_embd == 96
    assert shape_of({"model_type": "gpt2", **both}, "mine").d_model == 96
