"""Weights and cache held, and the batch that fills a limit."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.models.presets import model
from peakward.prediction.inference.memory import largest_batch_size, serving_memory
from peakward.prediction.inference.weights import weight_bytes
from peakward.records.inference import ServingWorkload, Speculation
from peakward.records.model_shape import ModelShape

from .drawn import services
from .served import BF16, SMALL, replace, workload

GIB = 2**30
DRAFT = replace(SMALL, name="draft", n_layers=1)


def test_llama_3_8b_with_eight_full_contexts_by_hand() -> None:
    memory = serving_memory(
        model("llama-3-8b"), workload(batch_size=8, prompt_len=8000, output_len=193)
    )
    assert memory.weights_bytes == 2 * 8_030_261_248
    assert memory.cache_bytes_per_token == 131_072
    # The last token of a sequence is never fed back: 8,192 positions are a GiB a sequence.
    assert memory.cache_bytes == 8 * GIB
    assert memory.total_bytes == memory.weights_bytes + 8 * GIB
    assert memory.draft_bytes == 0


def test_a_window_caps_the_cache() -> None:
    windowed = replace(SMALL, window=10)
    position = 2 * 3 * 2 * 6 * 2
    assert serving_memory(SMALL, workload()).cache_bytes == 2 * 20 * position
    assert serving_memory(windowed, workload()).cache_bytes == 2 * 10 * position


def test_a_draft_is_held_too() -> None:
    drafted = workload(speculation=Speculation(draft=DRAFT, draft_len=3, acceptance_rate=0.5))
    memory = serving_memory(SMALL, drafted)
    assert memory.draft_bytes == weight_bytes(DRAFT, BF16) + 2 * 20 * 2 * 2 * 6 * 2
    assert memory.total_bytes == memory.weights_bytes + memory.cache_bytes + memory.draft_bytes


def test_a_limit_below_the_weights_holds_nothing() -> None:
    assert largest_batch_size(SMALL, workload(), 1) == 0
    assert largest_batch_size(SMALL, workload(), weight_bytes(SMALL, BF16)) == 0


@pytest.mark.parametrize("with_draft", [False, True])
@settings(max_examples=60)
@given(service=services(), room=st.integers(0, 10**9))
def test_the_largest_batch_fits_and_one_more_does_not(
    with_draft: bool, service: tuple[ModelShape, ServingWorkload], room: int
) -> None:
    shape, load = service
    if with_draft:
        settings_: dict[str, Any] = {"draft": DRAFT, "draft_len": 2, "acceptance_rate": 0.5}
        load = replace(load, speculation=Speculation(**settings_))
    limit = weight_bytes(shape, load.weights) + room
    largest = largest_batch_size(shape, load, limit)

    def total_bytes(batch_size: int) -> int:
        return serving_memory(shape, replace(load, batch_size=batch_size)).total_bytes

    assert largest == 0 or total_bytes(largest) <= limit
    assert total_bytes(largest + 1) > limit
