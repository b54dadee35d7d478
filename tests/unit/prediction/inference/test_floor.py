"""The floor of a served workload: its source, its pace, and what follows."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.floor import Ceilings, roof
from peakward.prediction.inference.cost import decode_step, prefill, serving_memory
from peakward.prediction.inference.floor import (
    best_draft_len,
    compute_bound_batch_size,
    expected_tokens,
    serving_floor,
    speculation_floor,
    speed_up,
    step_floor,
)
from peakward.records.calibration import Calibration, MatmulRate
from peakward.records.codec import from_json, to_json
from peakward.records.errors import PeakwardError
from peakward.records.inference import (
    Cost,
    ServingFloor,
    ServingWorkload,
    Speculation,
    SpeculationFloor,
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


# A round on a device: where verifying is free the theorem holds, and where not, less is gained.

DRAFT = model("llama-3.2-1b")


def drafted(draft: Any = DRAFT, draft_len: int = 4, rate: float = 0.7, **other: Any) -> Any:
    speculation = Speculation(draft=draft, draft_len=draft_len, acceptance_rate=rate)
    return workload(**{"batch_size": 1, "prompt_len": 512, **other}, speculation=speculation)


def floor(load: ServingWorkload, shape: Any = LLAMA) -> SpeculationFloor:
    found = speculation_floor(shape, load, CEILINGS)
    assert found is not None
    return found


def test_without_speculation_there_is_no_round() -> None:
    assert speculation_floor(LLAMA, workload(), CEILINGS) is None


def test_a_round_is_the_drafts_steps_and_one_of_the_target() -> None:
    load = drafted()
    found = floor(load)
    draft = step_floor(decode_step(DRAFT, load, load.contexts), CEILINGS).floor_s
    plain = step_floor(decode_step(LLAMA, load, load.contexts), CEILINGS).floor_s
    verified = step_floor(decode_step(LLAMA, load, load.contexts, n_new=5), CEILINGS).floor_s
    assert found.draft_step_s == draft
    assert found.verification_s == verified
    assert found.round_s == 4 * draft + verified
    assert found.relative_cost == draft / plain
    assert found.tokens_per_round == expected_tokens(4, 0.7)
    assert found.speed_up == pytest.approx(plain * found.tokens_per_round / found.round_s)
    assert found.draft_prefill_s == step_floor(prefill(DRAFT, load), CEILINGS).floor_s


def test_one_sequence_of_a_dense_model_gains_what_the_theorem_says() -> None:
    found = floor(drafted())
    assert found.verification_cost == pytest.approx(1, abs=1e-3)
    assert found.speed_up == pytest.approx(found.ideal_speed_up, rel=1e-3)
    assert found.speed_up > 1.5


def test_a_batch_bound_by_compute_pays_for_every_token_that_it_verifies() -> None:
    found = floor(drafted(batch_size=2000, prompt_len=1, output_len=2))
    assert found.verification_cost == pytest.approx(5, rel=0.05)
    assert found.speed_up < 1
    assert (found.best_draft_len, found.best_speed_up) == (0, 1)


def test_verifying_sends_more_tokens_to_more_experts() -> None:
    draft = replace(DRAFT, vocab_size=32_000)
    found = floor(drafted(draft), model("mixtral-8x7b"))
    # Five tokens with two of eight experts each: 8 (1 - 0.75^5) = 6.1 instead of 2.
    assert found.verification_cost == pytest.approx(2.8, abs=0.1)
    assert found.speed_up < 0.5 * found.ideal_speed_up


def test_the_best_draft_gains_no_less_than_any_other() -> None:
    gains = {length: floor(drafted(draft_len=length)).speed_up for length in range(1, 9)}
    found = floor(drafted())
    assert found.best_speed_up == max(1, *gains.values())
    assert gains[found.best_draft_len] == found.best_speed_up


# Speculative decoding against the paper's figures, a simulation and its own corollary.

rates = st.floats(0, 1)
costs = st.floats(0.01, 2)


@pytest.mark.parametrize(
    ("acceptance_rate", "draft_len", "printed"),
    # Leviathan, Kalman, Matias (2023), table 1: the speed of a draft that costs nothing.
    [
        (0.6, 2, 1.96),
        (0.7, 3, 2.53),
        (0.8, 2, 2.44),
        (0.8, 5, 3.69),
        (0.9, 2, 2.71),
        (0.9, 10, 6.86),
    ],
)
def test_the_papers_table(acceptance_rate: float, draft_len: int, printed: float) -> None:
    assert expected_tokens(draft_len, acceptance_rate) == pytest.approx(printed, abs=0.005)
    assert speed_up(draft_len, acceptance_rate, 0.0) == pytest.approx(printed, abs=0.005)


def test_a_simulation_gives_the_expected_tokens() -> None:
    draw = random.Random(0)

    def round_tokens() -> int:
        accepted = 0
        while accepted < 4 and draw.random() < 0.7:
            accepted += 1
        return accepted + 1

    n_rounds = 40_000
    mean = sum(round_tokens() for _ in range(n_rounds)) / n_rounds
    # The standard deviation of a round is below 2: of the mean, below 0.01.
    assert mean == pytest.approx(expected_tokens(4, 0.7), abs=0.04)


@given(st.integers(0, 64), st.floats(0, 0.99))
def test_the_sum_is_the_closed_form_of_equation_1(draft_len: int, rate: float) -> None:
    closed = (1 - rate ** (draft_len + 1)) / (1 - rate)
    assert expected_tokens(draft_len, rate) == pytest.approx(closed, rel=1e-12)


@given(st.integers(0, 64))
def test_a_draft_never_accepted_gives_one_token_and_one_always_accepted_all(draft_len: int) -> None:
    assert expected_tokens(draft_len, 0.0) == 1
    assert expected_tokens(draft_len, 1e-12) == pytest.approx(1)
    assert expected_tokens(draft_len, 1.0) == draft_len + 1


@given(st.integers(0, 32), rates, costs, st.floats(1, 5))
def test_a_dearer_draft_or_verification_gains_less(
    draft_len: int, rate: float, cost: float, verification: float
) -> None:
    gain = speed_up(draft_len, rate, cost)
    assert speed_up(draft_len, rate, 2 * cost) <= gain
    assert speed_up(draft_len, rate, cost, verification_cost=verification) <= gain
    assert speed_up(0, rate, cost) == 1


@given(rates, costs)
def test_the_best_draft_beats_all_and_helps_where_acceptance_exceeds_cost(
    rate: float, cost: float
) -> None:
    best = best_draft_len(rate, cost)
    gain = speed_up(best, rate, cost)
    assert all(gain >= speed_up(draft_len, rate, cost) for draft_len in range(33))
    # Corollary 3.9: some draft helps where α > c, and one token gains (1 + α)/(1 + c).
    if rate > cost + 1e-9:
        assert best > 0
        assert gain >= (1 + rate) / (1 + cost) * (1 - 1e-12)
    if rate < cost - 1e-9:
        assert best == 0


def test_a_verification_that_grows_shortens_the_draft_or_forbids_it() -> None:
    # (1 - 0.8^9) / 0.2 / 1.4 = 3.092, against 3.082 for 7 tokens and 3.078 for 9.
    assert best_draft_len(0.8, 0.05) == 8
    # 2.952 / 1.9 = 1.554, against 1.525 for 2 tokens and 1.528 for 4.
    assert best_draft_len(0.8, 0.05, verification_cost=lambda n: 1 + n / 4) == 3
    assert best_draft_len(0.8, 0.05, verification_cost=lambda n: 1.0 + n) == 0
    assert best_draft_len(1.0, 0.1, longest=7) == 7
