"""Catalogued shapes, looking them up, and refusing shapes that no model can have."""

import msgspec
import pytest

from peakward.models.presets import MODELS, derived_head_dim, model, validate
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape


def test_names_are_unique() -> None:
    names = [shape.name for shape in MODELS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("shape", MODELS, ids=lambda shape: shape.name)
def test_every_catalogued_shape_is_valid_and_found_by_its_name(shape: ModelShape) -> None:
    validate(shape)
    assert model(shape.name) == shape


@pytest.mark.parametrize(
    ("name", "n_layers", "d_model", "d_ff", "n_heads"),
    [
        ("tiny", 4, 256, 1024, 4),
        ("small", 12, 768, 3072, 12),
        ("medium", 24, 1024, 4096, 16),
        ("large", 36, 1280, 5120, 20),
        ("xl", 48, 1600, 6400, 25),
        ("2.7B", 32, 2560, 10_240, 32),
    ],
)
def test_own_sizes_share_one_architecture(
    name: str, n_layers: int, d_model: int, d_ff: int, n_heads: int
) -> None:
    shape = model(name)
    assert (shape.n_layers, shape.d_model, shape.d_ff, shape.n_heads) == (
        n_layers,
        d_model,
        d_ff,
        n_heads,
    )
    assert shape.n_kv_heads * shape.head_dim == d_model
    assert (shape.norm, shape.positions, shape.activation) == ("rmsnorm", "rope", "silu")
    assert shape.gated and not shape.tied_head and not shape.bias
    assert (shape.vocab_size, shape.max_seq_len) == (10_000, 16_384)


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("smal", "small"),
        ("XL", "xl"),
        ("2.7b", "2.7B"),
        ("gpt-2", "gpt2"),
        ("llama2-7b", "llama-2"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(given: str, nearest: str) -> None:
    with pytest.raises(
        PeakwardError, match=f"expected a model, got '{given}': perhaps .*{nearest}"
    ):
        model(given)


def test_a_name_near_to_nothing_is_answered_with_all() -> None:
    with pytest.raises(PeakwardError, match=r"got '%%': there are tiny, small, .*qwen2\.5-7b"):
        model("%%")


def test_head_dim_is_derived_only_where_the_heads_divide_the_width() -> None:
    assert derived_head_dim(768, 12) == 64
    with pytest.raises(PeakwardError, match="divides d_model 768, got 7: change either"):
        derived_head_dim(768, 7)
    with pytest.raises(PeakwardError, match="divides d_model 768, got 0"):
        derived_head_dim(768, 0)


def test_a_stated_head_dim_need_not_divide_the_width() -> None:
    validate(msgspec.structs.replace(model("small"), n_heads=7, n_kv_heads=7, head_dim=64))


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "alibi"])
def test_an_odd_head_dim_is_refused_only_under_rope(positions: str) -> None:
    validate(msgspec.structs.replace(model("small"), head_dim=63, positions=positions))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"vocab_size": 0}, "vocab_size of at least 1, got 0"),
        ({"n_layers": -1}, "n_layers of at least 1, got -1"),
        ({"d_model": 0}, "d_model of at least 1, got 0"),
        ({"d_ff": 0}, "d_ff of at least 1, got 0"),
        ({"n_heads": 0}, "n_heads of at least 1, got 0"),
        ({"n_kv_heads": 0}, "n_kv_heads of at least 1, got 0"),
        ({"n_experts": 0}, "n_experts of at least 1, got 0"),
        ({"n_experts": 4, "n_active_experts": 0}, "n_active_experts of at least 1, got 0"),
        ({"n_active_experts": 2}, "n_active_experts of at most n_experts 1, got 2"),
        ({"n_experts": 4, "n_active_experts": 5}, "n_active_experts of at most n_experts 4, got 5"),
        ({"n_experts": 4, "bias": True}, "no bias in a shape of 4 experts"),
        ({"head_dim": 0}, "head_dim of at least 1, got 0"),
        ({"max_seq_len": 0}, "max_seq_len of at least 1, got 0"),
        ({"window": 0}, "window of at least 1, got 0"),
        ({"norm_eps": 0.0}, "positive norm_eps, got 0.0"),
        ({"norm_eps": float("nan")}, "positive norm_eps, got nan"),
        ({"rope_theta": float("inf")}, "positive rope_theta, got inf"),
        ({"n_kv_heads": 5}, "n_kv_heads that divide n_heads 12, got 5"),
        ({"n_kv_heads": 24}, "n_kv_heads that divide n_heads 12, got 24"),
        ({"head_dim": 63}, "even head_dim under rope, got 63"),
        ({"norm": "batchnorm"}, r"expected a model shape.*batchnorm.*norm"),
        ({"n_layers": "12"}, r"expected a model shape.*n_layers"),
        ({"d_model": 768.5}, r"expected a model shape.*d_model"),
    ],
)
def test_an_impossible_shape_is_refused_with_one_line(
    changed: dict[str, object], message: str
) -> None:
    with pytest.raises(PeakwardError, match=message) as caught:
        validate(msgspec.structs.replace(model("small"), **changed))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
