"""Parameter counts against published totals and against a count by hand."""

import msgspec
import pytest

from peakward.models.presets import model
from peakward.prediction.parameters import (
    block_matmul_parameters,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    n_active_parameters,
    n_parameters,
)
from peakward.records.model_shape import ModelShape

TOY = ModelShape(
    name="toy",
    vocab_size=11,
    n_layers=2,
    d_model=6,
    d_ff=10,
    n_heads=4,
    n_kv_heads=2,
    head_dim=3,
    max_seq_len=7,
)


@pytest.mark.parametrize(
    ("name", "total"),
    [
        # As transformers counts the checkpoint of that name.
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("llama-3.2-1b", 1_235_814_400),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-7b", 7_615_616_512),
        # 32 · (4 · 2560² + 3 · 2560 · 10240 + 2 · 2560) + 2 · 10000 · 2560 + 2560
        ("2.7B", 3_406_809_600),
    ],
)
def test_totals_are_the_published_ones(name: str, total: int) -> None:
    assert n_parameters(model(name)) == total


def test_a_block_by_hand() -> None:
    query, key_and_value, output = 6 * 12, 2 * 6 * 6, 12 * 6
    assert block_matmul_parameters(TOY) == query + key_and_value + output + 3 * 6 * 10


@pytest.mark.parametrize(
    ("changed", "more"),
    [
        ({"norm": "layernorm"}, 6 * (2 * 2 + 1)),
        ({"qkv_bias": True}, 2 * (12 + 2 * 6)),
        ({"bias": True}, 2 * (6 + 2 * 10 + 6)),
        ({"bias": True, "gated": False}, 2 * (6 + 10 + 6 - 6 * 10)),
        ({"gated": False}, -2 * 6 * 10),
        ({"positions": "learned"}, 7 * 6),
        ({"positions": "alibi"}, 0),
        ({"positions": "sinusoidal"}, 0),
        ({"window": 3}, 0),
        ({"tied_head": True}, -11 * 6),
        ({"n_kv_heads": 4}, 2 * 2 * 6 * 6),
        ({"n_experts": 5}, 2 * (4 * 3 * 6 * 10 + 5 * 6)),
        ({"n_experts": 5, "gated": False}, 2 * ((5 * 2 - 3) * 6 * 10 + 5 * 6)),
    ],
)
def test_each_choice_adds_what_it_has(changed: dict[str, object], more: int) -> None:
    assert n_parameters(msgspec.structs.replace(TOY, **changed)) - n_parameters(TOY) == more


def test_the_active_parameters_of_mixtral_are_the_published_ones() -> None:
    # "each token has access to 47B parameters, but only uses 13B" (Jiang et al. 2024); 12.9 in the
    # announcement. All but six experts of each layer.
    active = n_active_parameters(model("mixtral-8x7b"))
    assert active == 46_702_792_704 - 32 * 6 * 3 * 4096 * 14_336
    assert round(active / 1e9, 1) == 12.9


def test_every_parameter_of_a_dense_model_is_active() -> None:
    assert n_active_parameters(TOY) == n_parameters(TOY)


def test_the_parts_make_the_whole() -> None:
    parts = (embedding_parameters(TOY), layer_parameters(TOY), head_parameters(TOY))
    assert parts == (66, 2 * (block_matmul_parameters(TOY) + 12) + 6, 66)
    assert sum(parts) == n_parameters(TOY)
