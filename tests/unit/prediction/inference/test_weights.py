"""Stored bytes of weights: by hand, against published sizes, and against the traffic of a pass."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.models.presets import model
from peakward.prediction.inference.weights import read_bytes, weight_bytes
from peakward.prediction.matrices import matrix_bytes
from peakward.prediction.parameters import n_active_parameters, n_parameters
from peakward.prediction.traffic import TOKEN_ID_BYTES, compulsory_bytes
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.inference import WeightFormat
from peakward.records.model_shape import ModelShape

from .drawn import formats, shapes
from .served import BF16, INT4, INT8, SMALL, SMALL_BLOCK, replace

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
