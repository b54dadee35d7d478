"""The batch from which decoding is bound by compute."""

from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.models.presets import model
from peakward.prediction.ceilings import Ceilings, roof
from peakward.prediction.inference.cost import decode_step
from peakward.prediction.inference.crossover import compute_bound_batch_size
from peakward.records.inference import ServingWorkload
from peakward.records.model_shape import ModelShape

from .drawn import services
from .served import H100, INT4, SMALL, replace, workload


def bound(shape: ModelShape, load: ServingWorkload, batch_size: int, on: Ceilings) -> str | None:
    batch = replace(load, batch_size=batch_size)
    step = decode_step(shape, batch, load.contexts)
    return roof(step.flops, step.bytes, on).bound


def test_without_context_it_is_about_the_ridge_and_a_quarter_of_it_in_int4() -> None:
    """2 FLOPs and 2 bytes a weight: the ridge is 989e12 / 3350e9 = 295 FLOPs a byte."""
    llama = model("llama-2-7b")
    short = workload(prompt_len=1, output_len=2)
    at_16_bits = compute_bound_batch_size(llama, short, H100)
    at_4_bits = compute_bound_batch_size(llama, replace(short, weights=INT4), H100)
    assert at_16_bits is not None
    assert at_4_bits is not None
    assert 295 < at_16_bits < 340
    assert 0.25 < at_4_bits / at_16_bits < 0.32


def test_a_long_context_keeps_every_batch_bound_by_memory() -> None:
    long = workload(prompt_len=4000, output_len=64)
    assert compute_bound_batch_size(model("llama-2-7b"), long, H100) is None
    assert bound(model("llama-2-7b"), long, 10**9, H100) == "memory"


def test_experts_need_more_of_a_batch() -> None:
    short = workload(prompt_len=1, output_len=2)
    dense = compute_bound_batch_size(model("mistral-7b"), short, H100)
    mixture = compute_bound_batch_size(model("mixtral-8x7b"), short, H100)
    assert dense is not None
    assert mixture is not None
    assert mixture > 3 * dense


def test_token_ids_count_where_a_cache_is_as_small() -> None:
    """Two positions of 4 bytes in fp8 against an id of 8."""
    smallest = replace(SMALL, n_layers=1, n_heads=1, n_kv_heads=1, head_dim=2)
    load = workload(prompt_len=1, output_len=2, cache_type="fp8")
    flops = decode_step(smallest, replace(load, batch_size=1), load.contexts).flops
    for own_bytes, has_one in ((17, True), (15, False)):
        on = Ceilings("by hand", flops, own_bytes, "datasheet")
        assert (compute_bound_batch_size(smallest, load, on) is not None) == has_one


@settings(max_examples=100)
@given(services(), st.floats(0.01, 0.99) | st.floats(1.01, 3))
def test_the_batch_before_is_bound_by_memory_and_from_it_on_by_compute(
    service: tuple[ModelShape, ServingWorkload], times: float
) -> None:
    shape, load = service
    # No batch has a higher intensity than an endless one.
    endless = decode_step(shape, replace(load, batch_size=10**15), load.contexts).flops_per_byte
    on = Ceilings("drawn", times * endless * 1e9, 1e9, "datasheet")
    first = compute_bound_batch_size(shape, load, on)
    if times > 1:
        assert first is None
        return
    assert first is not None
    assert first == 1 or bound(shape, load, first - 1, on) == "memory"
    for later in (first, first + 1, 2 * first, 100 * first):
        assert bound(shape, load, later, on) == "compute"
