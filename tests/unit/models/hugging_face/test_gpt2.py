"""GPT-2 and StarCoder, against transformers' classes of them."""

import pytest
import transformers

from peakward.models.hugging_face.shape import shape_of

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
