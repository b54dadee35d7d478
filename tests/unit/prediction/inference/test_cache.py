"""Bytes of a cached position against published figures, and reach against counting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.models.presets import model
from peakward.prediction.traffic import cache_bytes_per_token, held_positions, mean_reach
from peakward.records.inference import CacheType
from peakward.records.model_shape import ModelShape

from .served import SMALL, replace

LLAMA_2_70B = ModelShape(
    name="llama-2-70b",
    vocab_size=32_000,
    n_layers=80,
    d_model=8192,
    d_ff=28_672,
    n_heads=64,
    n_kv_heads=8,
    head_dim=128,
    max_seq_len=4096,
)


def test_published_sizes_in_bf16() -> None:
    assert cache_bytes_per_token(model("llama-2-7b"), "bf16") == 524_288
    assert cache_bytes_per_token(model("llama-3-8b"), "bf16") == 131_072
    assert cache_bytes_per_token(LLAMA_2_70B, "bf16") == 327_680


def test_grouped_queries_of_llama_2_70b_save_seven_eighths() -> None:
    multi_head = replace(LLAMA_2_70B, n_kv_heads=64)
    assert cache_bytes_per_token(multi_head, "bf16") == 8 * 327_680


@pytest.mark.parametrize(
    ("cache_type", "vector_bytes"),
    [("fp32", 4 * 6), ("bf16", 2 * 6), ("fp16", 2 * 6), ("fp8", 6 + 4), ("int8", 6 + 4)],
)
def test_each_head_holds_a_key_and_a_value_and_those_of_a_byte_their_scales(
    cache_type: CacheType, vector_bytes: int
) -> None:
    assert cache_bytes_per_token(SMALL, cache_type) == 2 * 3 * 2 * vector_bytes


def test_a_window_caps_what_is_held() -> None:
    windowed = replace(SMALL, window=10)
    assert [held_positions(windowed, length) for length in (1, 10, 11, 64)] == [1, 10, 10, 10]
    assert held_positions(SMALL, 64) == 64


@given(st.integers(1, 300), st.integers(1, 300), st.none() | st.integers(1, 400))
def test_the_mean_reach_is_the_mean_of_the_reaches(
    first: int, n_steps: int, window: int | None
) -> None:
    contexts = range(first, first + n_steps)
    counted = [min(each, window or each) for each in contexts]
    assert mean_reach(contexts, window) == pytest.approx(sum(counted) / n_steps, rel=1e-12)
