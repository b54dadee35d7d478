"""FLOPs and traffic of prefill and decode: by hand, by counting every product, and in general."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.models.presets import model
from peakward.prediction.flops import forward_flops, head_flops, phase_flops
from peakward.prediction.inference.cost import (
    decode_step,
    largest_batch_size,
    prefill,
    read_bytes,
    serving_cost,
    serving_memory,
    weight_bytes,
)
from peakward.prediction.parameters import n_active_parameters, n_parameters
from peakward.prediction.traffic import (
    TOKEN_ID_BYTES,
    cache_bytes_per_token,
    compulsory_bytes,
    matrix_bytes,
)
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.inference import ServingWorkload, Speculation, WeightFormat
from peakward.records.model_shape import ModelShape

from .drawn import formats, services, shapes
from .served import BF16, INT4, INT8, SMALL, SMALL_BLOCK, replace, workload

POSITION = 2 * 3 * 2 * 6 * 2
"""Cached bytes of the small shape in bf16."""
HEAD = 2 * 50 * 8
"""FLOPs of its head at one position."""


def at(context_len: int) -> range:
    return range(context_len, context_len + 1)


def test_a_decode_step_by_hand() -> None:
    step = decode_step(SMALL, workload(), at(20))
    # Scores and weighted values over 20 positions in 3 layers of 4 heads.
    attention = 3 * 2 * 2 * 4 * 6 * 20
    assert step.flops == 2 * (3 * 2 * SMALL_BLOCK + attention + HEAD)
    rows = 50 * (1 - (49 / 50) ** 2) * 8
    weights = 2 * (3 * SMALL_BLOCK + 7 * 8 + 50 * 8 + rows)
    # 19 positions are read and one is written, of each of two sequences.
    assert step.bytes == pytest.approx(weights + 2 * 20 * POSITION + 2 * 8)
    assert step.flops_per_byte == step.flops / step.bytes


def test_a_prefill_by_hand() -> None:
    step = prefill(SMALL, workload())
    attention = 3 * 2 * 2 * 4 * 6 * (16 * 16 / 2)
    assert step.flops == 2 * (16 * 3 * 2 * SMALL_BLOCK + attention + HEAD)
    read = read_bytes(SMALL, BF16, n_tokens=32, n_positions=16)
    assert step.bytes == pytest.approx(read + 2 * 16 * POSITION + 32 * 8)


def test_a_prefill_leaves_the_window_in_the_cache() -> None:
    windowed = replace(SMALL, window=10)
    saved = prefill(SMALL, workload()).bytes - prefill(windowed, workload()).bytes
    assert saved == 2 * (16 - 10) * POSITION


def test_a_prefill_is_a_forward_pass_with_the_head_at_one_position() -> None:
    llama = model("llama-3-8b")
    step = prefill(llama, workload(batch_size=3, prompt_len=500))
    saved = head_flops(llama, n_tokens=3 * 499)
    assert step.flops == pytest.approx(forward_flops(llama, 3, 500) - saved, rel=1e-12)


def test_decoding_counts_exactly_what_half_of_a_square_counts_on_average() -> None:
    """Prompt positions 1 … n one at a time attend to n(n + 1)/2 keys; the convention has n²/2."""
    counted = sum(decode_step(SMALL, workload(), at(length)).flops for length in range(1, 17))
    whole = forward_flops(SMALL, 2, 16)
    assert counted - whole == 2 * 3 * 2 * 2 * 4 * 6 * 16 / 2


def test_decoding_mixtral_takes_two_flops_of_each_active_parameter() -> None:
    mixtral = model("mixtral-8x7b")
    step = decode_step(mixtral, workload(batch_size=1), at(1))
    looked_up = mixtral.vocab_size * mixtral.d_model
    norms = 65 * mixtral.d_model
    attention = 32 * 2 * 2 * 32 * 128
    expected = 2 * (n_active_parameters(mixtral) - looked_up - norms) + attention
    assert step.flops == expected


@pytest.mark.parametrize("name", ["small", "gpt2", "llama-3-8b", "mistral-7b", "mixtral-8x7b"])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_measured_step_is_one_of_serving(name: str, batch_size: int) -> None:
    """The passes of a case, whose floors stand beside measurements, cost what serving plans count."""
    shape, seq_len = model(name), 900 if name == "gpt2" else 6000
    served = workload(batch_size=batch_size, prompt_len=seq_len)
    decoded = decode_step(shape, served, at(seq_len))
    for pass_, cost in (("prefill", prefill(shape, served)), ("decode", decoded)):
        case = ModelCase(
            model=shape,
            workload=Workload(batch_size=batch_size, seq_len=seq_len, pass_=pass_),  # type: ignore[arg-type]
            configuration=Configuration(precision="bf16"),
            device="cuda",
        )
        assert phase_flops(case) == {"forward": cost.flops}
        assert compulsory_bytes(case)["forward"] == pytest.approx(cost.bytes, rel=1e-12)


def test_verifying_a_draft_is_its_steps_with_the_weights_and_the_cache_read_once() -> None:
    verified = decode_step(SMALL, workload(), at(20), n_new=4)
    steps = [decode_step(SMALL, workload(), at(20 + i)) for i in range(4)]
    assert verified.flops == sum(step.flops for step in steps)
    read = read_bytes(SMALL, BF16, n_tokens=8, n_positions=4)
    assert verified.bytes == pytest.approx(read + 2 * (19 + 4) * POSITION + 8 * 8)


def test_a_mean_step_is_the_mean_of_the_steps() -> None:
    for shape in (SMALL, replace(SMALL, window=18)):
        mean = serving_cost(shape, workload()).decode
        steps = [decode_step(shape, workload(), at(length)) for length in (17, 18, 19, 20)]
        assert mean.flops == pytest.approx(sum(step.flops for step in steps) / 4, rel=1e-12)
        assert mean.bytes == pytest.approx(sum(step.bytes for step in steps) / 4, rel=1e-12)


def test_a_served_workload_has_each_part() -> None:
    cost = serving_cost(SMALL, workload())
    assert (cost.model, cost.workload) == (SMALL, workload())
    assert cost.prefill == prefill(SMALL, workload())
    assert cost.decode == decode_step(SMALL, workload(), range(17, 21))
    assert cost.memory.cache_bytes == 2 * 20 * POSITION


def test_what_cannot_be_served_has_no_cost() -> None:
    with pytest.raises(PeakwardError, match="expected batch_size of at least 1, got 0"):
        serving_cost(SMALL, workload(batch_size=0))


@settings(max_examples=60)
@given(services(), st.integers(1, 400), st.integers(1, 100))
def test_decode_bytes_grow_by_a_position_a_token_until_the_window(
    service: tuple[ModelShape, ServingWorkload], context_len: int, more: int
) -> None:
    shape, load = service
    base, grown = (decode_step(shape, load, at(n)) for n in (context_len, context_len + more))
    window = shape.window or context_len + more
    reached = min(context_len + more, window) - min(context_len, window)
    position = load.batch_size * cache_bytes_per_token(shape, load.cache_type)
    assert grown.bytes - base.bytes == pytest.approx(
        reached * position, rel=1e-9, abs=1e-9 * base.bytes
    )
    key = 4 * shape.n_layers * shape.n_heads * shape.head_dim
    assert grown.flops - base.flops == load.batch_size * reached * key


@settings(max_examples=60)
@given(services())
def test_work_is_linear_in_the_batch_and_traffic_at_most(
    service: tuple[ModelShape, ServingWorkload],
) -> None:
    shape, load = service
    once = serving_cost(shape, load)
    twice = serving_cost(shape, replace(load, batch_size=2 * load.batch_size))
    for one, two in ((once.prefill, twice.prefill), (once.decode, twice.decode)):
        assert two.flops == 2 * one.flops
        assert one.bytes < two.bytes <= 2 * one.bytes * (1 + 1e-12)
        assert two.flops_per_byte >= one.flops_per_byte * (1 - 1e-12)


@settings(max_examples=60)
@given(services())
def test_stored_types_change_bytes_alone(service: tuple[ModelShape, ServingWorkload]) -> None:
    shape, load = service
    wide = replace(shape, d_model=shape.d_model + 64, d_ff=shape.d_ff + 64, head_dim=64)
    costs = [serving_cost(wide, replace(load, weights=each)) for each in (INT4, INT8, BF16)]
    traffic = [cost.decode.bytes for cost in costs]
    assert traffic[0] < traffic[1] < traffic[2]
    assert len({cost.decode.flops for cost in costs}) == 1
    wider = serving_cost(wide, replace(load, weights=WeightFormat(type="fp32")))
    assert wider.decode.bytes > traffic[2]


# Stored bytes of weights: by hand, against published sizes, and against the traffic of a pass.

KEPT = 2 * 50 * 8 + (2 * 3 + 1) * 8
"""Embedding, head and norms of the small shape."""


def test_a_small_model_by_hand() -> None:
    assert weight_bytes(SMALL, BF16) == 2 * (KEPT + 3 * SMALL_BLOCK)
    n_rows = 24 + 12 + 12 + 8 + 20 + 20 + 8
    assert weight_bytes(SMALL, INT8) == 2 * KEPT + 3 * (SMALL_BLOCK + 2 * n_rows)
    assert weight_bytes(SMALL, INT4) == 2 * KEPT + 3 * (SMALL_BLOCK / 2 + 2 * n_rows)


def test_biases_and_routers_stay_in_16_bits() -> None:
    biased = replace(SMALL, bias=True, qkv_bias=True)
    experts = replace(SMALL, n_experts=5, n_active_experts=2)
    more = n_parameters(biased) - n_parameters(SMALL)
    assert weight_bytes(biased, INT4) - weight_bytes(SMALL, INT4) == 2 * more
    # Per block four further networks and a router of 8 · 5.
    matrices = 2 * matrix_bytes((8, 20), INT4) + matrix_bytes((20, 8), INT4)
    assert weight_bytes(experts, INT4) - weight_bytes(SMALL, INT4) == 3 * (4 * matrices + 2 * 40)


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "gpt2", "qwen2.5-0.5b"])
def test_16_bits_are_two_bytes_a_parameter(name: str) -> None:
    assert weight_bytes(model(name), BF16) == 2 * n_parameters(model(name))


def test_one_token_of_mixtral_reads_its_active_parameters() -> None:
    mixtral = model("mixtral-8x7b")
    assert n_active_parameters(mixtral) == pytest.approx(12.88e9, rel=1e-3)
    table = mixtral.vocab_size * mixtral.d_model
    read = read_bytes(mixtral, BF16, n_tokens=1, n_positions=1)
    # All that it goes through, of the table one row.
    expected = 2 * (n_active_parameters(mixtral) - table + mixtral.d_model)
    assert read == pytest.approx(expected, rel=1e-12)
    assert read_bytes(mixtral, BF16, n_tokens=10**6, n_positions=1) == pytest.approx(
        2 * n_parameters(mixtral), rel=1e-12
    )


@settings(max_examples=60)
@given(shapes(), st.integers(1, 32), st.integers(1, 512), st.sampled_from(("fp32", "bf16")))
def test_unquantised_weights_are_read_as_a_forward_pass_reads_them(
    shape: ModelShape, batch_size: int, seq_len: int, kind: str
) -> None:
    case = ModelCase(
        model=shape,
        workload=Workload(batch_size=batch_size, seq_len=seq_len, pass_="forward"),
        configuration=Configuration(precision=kind),
        device="cpu",
    )
    n_tokens = batch_size * seq_len
    read = read_bytes(shape, WeightFormat(type=kind), n_tokens=n_tokens, n_positions=seq_len)
    moved = compulsory_bytes(case)["forward"] - TOKEN_ID_BYTES * n_tokens
    assert read == pytest.approx(moved, rel=1e-9)


@settings(max_examples=60)
@given(shapes(), formats(), st.integers(1, 512))
def test_no_step_reads_more_than_there_is(
    shape: ModelShape, stored: WeightFormat, n_tokens: int
) -> None:
    read = read_bytes(shape, stored, n_tokens=n_tokens, n_positions=512)
    assert 0 < read <= weight_bytes(shape, stored) * (1 + 1e-12)


@settings(max_examples=60)
@given(shapes())
def test_fewer_bits_take_fewer_bytes_where_rows_are_long(shape: ModelShape) -> None:
    long = replace(shape, d_model=shape.d_model + 64, d_ff=shape.d_ff + 64, head_dim=64)
    sizes = [weight_bytes(long, stored) for stored in (INT4, INT8, BF16)]
    assert sizes[0] < sizes[1] < sizes[2]


@settings(max_examples=60)
@given(shapes(), st.integers(1, 256), st.booleans())
def test_smaller_groups_never_take_less(
    shape: ModelShape, group_size: int, zero_points: bool
) -> None:
    stored = WeightFormat(type="int4", group_size=group_size, zero_points=zero_points)
    whole = replace(stored, group_size=None)
    halved = replace(stored, group_size=max(1, group_size // 2))
    sizes = [weight_bytes(shape, each) for each in (whole, stored, halved)]
    assert sizes == sorted(sizes)


# Weights and cache held, and the batch that fills a limit.

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
