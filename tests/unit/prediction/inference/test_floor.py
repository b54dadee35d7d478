"""The floor of a served workload: its source, its pace, and what follows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.floor import Ceilings, roof
from peakward.prediction.inference.cost import decode_step, serving_memory
from peakward.prediction.inference.floor import serving_floor
from peakward.prediction.inference.step import compute_bound_batch_size, step_floor
from peakward.records.calibration import Calibration, MatmulRate
from peakward.records.codec import from_json, to_json
from peakward.records.errors import PeakwardError
from peakward.records.inference import (
    Cost,
    ServingFloor,
    ServingWorkload,
    Speculation,
    StepFloor,
)
from peakward.records.measurement import Environment
from peakward.records.model_shape import ModelShape

from .drawn import services
from .served import CEILINGS, INT4, SMALL, replace, workload

H100 = device("h100-sxm-80")
LLAMA = model("llama-3-8b")
CALIBRATION = Calibration(
    environment=Environment(
        device_type="cuda",
        device_name="a card",
        device_memory_bytes=2**36,
        n_cores=4,
        python="3.11",
        system="Linux",
        peakward="0.1.0",
    ),
    started_at="2026-11-21T00:00:00Z",
    wall_s=1.0,
    matmul=(MatmulRate(compute_type="bf16", size=8192, flops_per_s=600e12),),
    copy_bytes_per_s=3000e9,
    copy_size_bytes=2**32,
)
REQUEST = workload(batch_size=1, prompt_len=1000, output_len=100)


def on_h100(load: ServingWorkload, shape: ModelShape = LLAMA) -> ServingFloor:
    return serving_floor(shape, load, calibration=None, device=H100)


def test_one_sequence_decodes_at_bandwidth_over_weights_and_prefills_at_the_rate() -> None:
    found = on_h100(REQUEST)
    assert (found.decode.bound, found.prefill.bound) == ("memory", "compute")
    # 15.0 GB of weights but the table, and some 0.14 GB of cache, at 3.35 TB/s.
    assert found.pace.time_per_output_token_s == pytest.approx(15.15e9 / 3350e9, rel=2e-3)
    assert found.pace.time_to_first_token_s == pytest.approx(
        found.cost.prefill.flops / 989e12, rel=1e-12
    )


def test_a_calibration_is_preferred_and_named() -> None:
    found = serving_floor(LLAMA, REQUEST, calibration=CALIBRATION, device=H100)
    assert (found.source, found.matmul_flops_per_s) == ("calibrated", 600e12)
    assert found.bytes_per_s == 3000e9
    assert on_h100(REQUEST).source == "datasheet"
    fp8 = replace(REQUEST, compute_type="fp8")
    assert serving_floor(LLAMA, fp8, calibration=CALIBRATION, device=H100).source == "datasheet"


def test_a_rate_that_nobody_knows_is_refused() -> None:
    fp8 = replace(REQUEST, compute_type="fp8")
    with pytest.raises(PeakwardError, match="expected a matmul rate in fp8 for a card, got none"):
        serving_floor(LLAMA, fp8, calibration=CALIBRATION, device=None)
    with pytest.raises(PeakwardError, match="got neither"):
        serving_floor(LLAMA, REQUEST, calibration=None, device=None)


def test_the_pace_of_a_batch() -> None:
    found = on_h100(replace(REQUEST, batch_size=8))
    pace = found.pace
    assert pace.time_to_first_token_s == found.prefill.floor_s
    assert pace.time_per_output_token_s == found.decode.floor_s
    assert pace.request_s == pytest.approx(found.prefill.floor_s + 99 * found.decode.floor_s)
    assert pace.prefill_tokens_per_s == pytest.approx(8 * 1000 / found.prefill.floor_s)
    assert pace.decode_tokens_per_s == pytest.approx(8 / found.decode.floor_s)
    assert pace.output_tokens_per_s == pytest.approx(8 * 100 / pace.request_s)


def test_speculation_sets_the_pace_of_decoding_and_prefills_its_draft() -> None:
    draft = Speculation(draft=model("llama-3.2-1b"), draft_len=4, acceptance_rate=0.7)
    plain, found = on_h100(REQUEST), on_h100(replace(REQUEST, speculation=draft))
    speculation = found.speculation
    assert speculation is not None
    assert plain.speculation is None
    assert found.decode == plain.decode
    token_s = speculation.round_s / speculation.tokens_per_round
    assert found.pace.time_per_output_token_s == token_s
    assert plain.decode.floor_s / token_s == pytest.approx(speculation.speed_up)
    started = found.pace.time_to_first_token_s + speculation.draft_prefill_s
    assert found.pace.request_s == pytest.approx(started + 99 * token_s)


def test_four_bits_decode_two_and_a_half_times_as_fast_at_least() -> None:
    found = on_h100(replace(REQUEST, weights=INT4))
    gain = on_h100(REQUEST).pace.time_per_output_token_s / found.pace.time_per_output_token_s
    # Not four times: the head stays in 16 bits, and there are scales.
    assert 2.5 < gain < 4


def test_the_largest_batch_is_of_the_limit() -> None:
    limit = 80 * 2**30
    found = serving_floor(LLAMA, REQUEST, calibration=None, device=H100, memory_limit_bytes=limit)
    largest = found.largest_batch_size
    assert largest is not None
    assert found.memory_limit_bytes == limit

    def total_bytes(batch_size: int) -> int:
        return serving_memory(LLAMA, replace(REQUEST, batch_size=batch_size)).total_bytes

    assert total_bytes(largest) <= limit < total_bytes(largest + 1)
    assert on_h100(REQUEST).largest_batch_size is None
    with pytest.raises(PeakwardError, match="expected a memory limit of at least 1 byte, got 0"):
        serving_floor(LLAMA, REQUEST, calibration=None, device=H100, memory_limit_bytes=0)


def test_the_record_survives_its_json() -> None:
    found = on_h100(REQUEST)
    assert from_json(to_json(found), ServingFloor) == found


def test_the_batch_that_turns_it_bound_by_compute_does() -> None:
    short = replace(REQUEST, prompt_len=16, output_len=16)
    first = on_h100(short).compute_bound_batch_size
    assert first is not None
    assert on_h100(replace(short, batch_size=first)).decode.bound == "compute"
    assert on_h100(replace(short, batch_size=first - 1)).decode.bound == "memory"


@settings(max_examples=40)
@given(services(), st.integers(2, 4))
def test_a_larger_batch_never_decodes_fewer_tokens_nor_a_sequence_faster(
    service: tuple[ModelShape, ServingWorkload], times: int
) -> None:
    shape, load = service
    base = on_h100(load, shape).pace
    more = on_h100(replace(load, batch_size=times * load.batch_size), shape).pace
    assert more.decode_tokens_per_s >= base.decode_tokens_per_s * (1 - 1e-12)
    assert more.time_per_output_token_s >= base.time_per_output_token_s * (1 - 1e-12)


def test_a_workload_that_cannot_be_served_has_no_floor() -> None:
    with pytest.raises(PeakwardError, match="expected batch_size"):
        on_h100(workload(batch_size=0), SMALL)


# A step takes the longer of its two times.


def test_a_step_takes_the_longer_of_its_two_times() -> None:
    on = CEILINGS._replace(matmul_flops_per_s=100.0, bytes_per_s=10.0)
    moved = step_floor(Cost(flops=200.0, bytes=30.0, flops_per_byte=200 / 30), on)
    computed = step_floor(Cost(flops=400.0, bytes=30.0, flops_per_byte=400 / 30), on)
    assert moved == StepFloor(compute_s=2.0, memory_s=3.0, floor_s=3.0, bound="memory")
    assert computed == StepFloor(compute_s=4.0, memory_s=3.0, floor_s=4.0, bound="compute")


# The batch from which decoding is bound by compute.


def bound(shape: ModelShape, load: ServingWorkload, batch_size: int, on: Ceilings) -> str | None:
    batch = replace(load, batch_size=batch_size)
    step = decode_step(shape, batch, load.contexts)
    return roof(step.flops, step.bytes, on).bound


def test_without_context_it_is_about_the_ridge_and_a_quarter_of_it_in_int4() -> None:
    """2 FLOPs and 2 bytes a weight: the ridge is 989e12 / 3350e9 = 295 FLOPs a byte."""
    llama = model("llama-2-7b")
    short = workload(prompt_len=1, output_len=2)
    at_16_bits = compute_bound_batch_size(llama, short, CEILINGS)
    at_4_bits = compute_bound_batch_size(llama, replace(short, weights=INT4), CEILINGS)
    assert at_16_bits is not None
    assert at_4_bits is not None
    assert 295 < at_16_bits < 340
    assert 0.25 < at_4_bits / at_16_bits < 0.32


def test_a_long_context_keeps_every_batch_bound_by_memory() -> None:
    long = workload(prompt_len=4000, output_len=64)
    assert compute_bound_batch_size(model("llama-2-7b"), long, CEILINGS) is None
    assert bound(model("llama-2-7b"), long, 10**9, CEILINGS) == "memory"


def test_experts_need_more_of_a_batch() -> None:
    short = workload(prompt_len=1, output_len=2)
    dense = compute_bound_batch_size(model("mistral-7b"), short, CEILINGS)
    mixture = compute_bound_batch_size(model("mixtral-8x7b"), short, CEILINGS)
    assert dense is not None
    assert mixture is not None
    assert mixture > 3 * dense


def test_token_ids_count_where_a_cache_is_as_small() -> None:
    """Two positions of 12 bytes in fp8, scales included, against an id of 8."""
    smallest = replace(SMALL, n_layers=1, n_heads=1, n_kv_heads=1, head_dim=2)
    load = workload(prompt_len=1, output_len=2, cache_type="fp8")
    flops = decode_step(smallest, replace(load, batch_size=1), load.contexts).flops
    for own_bytes, has_one in ((33, True), (31, False)):
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
