"""Configurations to shapes: published ones, and what is refused."""

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from peakward.models.hugging_face.shape import BEYOND, TYPES, shape_of
from peakward.models.presets import LARGEST, model, validate
from peakward.records.errors import PeakwardError

LLAMA_3_2 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
"""meta-llama/Llama-3.2-1B's, but for tokens and what concerns generation."""

PUBLISHED = {
    "gpt2-medium": {
        "architectures": ["GPT2LMHeadModel"],
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-05,
        "model_type": "gpt2",
        "n_ctx": 1024,
        "n_embd": 1024,
        "n_head": 16,
        "n_layer": 24,
        "n_positions": 1024,
        "vocab_size": 50257,
    },
    "llama-3.2-1b": LLAMA_3_2,
    "mistral-7b": {
        "architectures": ["MistralForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "model_type": "mistral",
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "model_type": "mixtral",
        "num_attention_heads": 32,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "output_router_logits": False,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "qwen2.5-7b": {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_position_embeddings": 131072,
        "max_window_layers": 28,
        "model_type": "qwen2",
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "tie_word_embeddings": False,
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_the_catalogued_shape(name):
    assert shape_of(PUBLISHED[name], name) == model(name)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"hidden_size": "2048"}, "hidden_size of mine to be usable, got '2048': Expected `int`"),
        ({"hidden_size": 2048.0}, "hidden_size of mine"),
        ({"hidden_size": True}, "hidden_size of mine"),
        ({"hidden_size": None}, "hidden_size of mine"),
        ({"hidden_size": 0}, "got '0': Expected `int` >= 1"),
        ({"num_hidden_layers": -16}, "num_hidden_layers of mine to be usable, got '-16'"),
        ({"num_hidden_layers": 10**30}, "Expected `int` <= 1000"),
        ({"vocab_size": 2**63}, "vocab_size of mine"),
        ({"max_position_embeddings": [4096]}, "max_position_embeddings of mine"),
        ({"rms_norm_eps": 0}, "rms_norm_eps of mine"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps of mine"),
        ({"rope_theta": float("inf")}, "rope_theta of mine"),
        ({"rope_theta": 10**400}, "rope_theta of mine"),
        ({"rope_scaling": "linear"}, "rope_scaling of mine"),
        ({"rope_scaling": {"rope_theta": "1e4"}}, "rope_scaling of mine"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings of mine"),
        ({"attention_bias": 1}, "attention_bias of mine"),
        ({"hidden_act": 7}, "hidden_act of mine"),
        ({"layer_types": ["linear_attention"]}, "layer_types of mine"),
        ({"architectures": "LlamaForCausalLM"}, "architectures of mine"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": None}, "state head_dim"),
        ({"num_key_value_heads": 5}, "n_kv_heads that divide n_heads 32, got 5"),
        ({"head_dim": 63}, "even head_dim"),
        ({"model_type": None}, "got mine without one"),
        ({"model_type": ["llama"]}, "expected a model_type of gpt2, .*got"),
        ({"model_type": "lama\x1b[31m"}, r"got 'lama\\x1b\[31m' in mine: take"),
        ({"model_type": "llava"}, "got 'llava' in mine: take the module itself"),
        ({"model_type": "qwen3"}, "'qwen3' in mine, which has norms on queries and keys"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_its_field(changed, line):
    with pytest.raises(PeakwardError, match=line) as caught:
        shape_of({**LLAMA_3_2, **changed}, "mine")
    assert str(caught.value).isprintable()
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model_type": "gpt2", "scale_attn_weights": False}, "scale_attn_weights"),
        (
            {"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx",
        ),
        ({"model_type": "gpt_bigcode", "add_cross_attention": True}, "add_cross_attention"),
        ({"model_type": "gpt2", "activation_function": "relu2"}, "'relu2'"),
        ({"model_type": "llama", "attention_bias": True}, "attention_bias true, mlp_bias false"),
        ({"model_type": "llama", "mlp_bias": True}, "attention_bias false, mlp_bias true"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.75}, "partial_rotary_factor 0.75"),
        (
            {"model_type": "phi3", "rope_parameters": {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor 0.5",
        ),
        (
            {"model_type": "mistral", "layer_types": ["full_attention", "sliding_attention"]},
            "layer_types",
        ),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 16},
            "max_window_layers 16",
        ),
        ({"model_type": "mixtral", "num_local_experts": 1}, "num_local_experts 1"),
        ({"model_type": "mixtral", "output_router_logits": True}, "output_router_logits true"),
        (
            {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]},
            "architectures 'LlamaForSequenceClassification'",
        ),
    ],
    ids=str,
)
def test_what_no_shape_expresses_is_refused_with_its_field(config, field):
    with pytest.raises(PeakwardError, match=field) as caught:
        shape_of(config, "mine")
    assert "take the module itself, which has steps without a cache: --model hf:…" in str(
        caught.value
    )


def test_types_are_theirs_and_refused_ones_too():
    assert {*TYPES, *BEYOND} <= set(transformers.CONFIG_MAPPING)
    assert TYPES.keys().isdisjoint(BEYOND)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda each: (
        st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=9), each, max_size=3)
    ),
    max_leaves=4,
)
fields = sorted({name for kind in TYPES.values() for name in kind.__struct_fields__})


@given(
    st.dictionaries(st.sampled_from([*fields, "architectures"]), junk, max_size=4),
    st.sampled_from(sorted(TYPES)),
)
def test_any_object_is_a_valid_shape_or_one_line(config, kind):
    try:
        shape = shape_of({**config, "model_type": kind}, "mine")
    except PeakwardError as error:
        assert "\n" not in str(error)
        assert str(error).isprintable()
    else:
        validate(shape)
        assert all(getattr(shape, part) <= most for part, most in LARGEST.items())
