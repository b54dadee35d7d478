"""Compulsory traffic, counted by hand."""

from typing import Any

import msgspec
import pytest

from peakward.levers.weights import QUANTISED
from peakward.models.presets import model
from peakward.prediction.operators.linear import layers
from peakward.prediction.operators.plan import plan
from peakward.prediction.parameters import n_parameters
from peakward.prediction.traffic import (
    compulsory_bytes,
    matrix_bytes,
    parameter_bytes,
    quantised_bytes,
    quantised_elements,
    sum_bytes,
)
from peakward.records.case import Configuration, ModelCase, Precision, StoredWeights, Workload
from peakward.records.inference import WeightFormat
from peakward.records.model_shape import ModelShape

from .inference.served import BF16, INT4, INT8

UNTIED = ModelShape(
    name="untied",
    vocab_size=50,
    n_layers=1,
    d_model=4,
    d_ff=8,
    n_heads=2,
    n_kv_heads=2,
    head_dim=2,
    max_seq_len=32,
)
WEIGHTS = 4 * (4 + 4 + 4 + 4 + 3 * 8) + 3 * 4 + 50 * 4
"""Of the block's matrices, three norms and the head."""


def case(shape: ModelShape = UNTIED, precision: Precision = "fp32", **workload: Any) -> ModelCase:
    return ModelCase(
        model=shape,
        workload=Workload(**{"batch_size": 2, "seq_len": 16, **workload}),
        configuration=Configuration(precision=precision),
        device="cuda",
    )


def touched(tokens: int) -> float:
    return 50 * (1 - (49 / 50) ** tokens)


def test_the_optimizer_moves_its_moments_as_they_are_stored() -> None:
    for optimizer, moment in (("adamw-bf16-states", 2 * 1024), ("adamw-8bit-states", 1024 + 4)):
        shape = msgspec.structs.replace(UNTIED, vocab_size=(1024 - 172) // 8)
        made = case(shape)
        n = n_parameters(shape)
        configuration = msgspec.structs.replace(made.configuration, optimizer=optimizer)
        made = msgspec.structs.replace(made, configuration=configuration)
        bits = moment * n / 1024 if "bf16" in optimizer else n + -(-n // 256)
        assert compulsory_bytes(made)["optimizer"] == 3 * 4 * n + 4 * bits


def test_a_training_step_by_hand() -> None:
    traffic = compulsory_bytes(case())
    rows = touched(32) * 4
    assert list(traffic) == ["forward", "backward", "optimizer"]
    assert traffic["forward"] == pytest.approx(4 * (WEIGHTS + rows) + 8 * 32)
    assert traffic["backward"] == pytest.approx(4 * (WEIGHTS + (WEIGHTS + rows)))
    assert traffic["optimizer"] == 7 * 4 * n_parameters(UNTIED)


def test_gradients_are_added_to_by_every_later_micro_batch() -> None:
    traffic = compulsory_bytes(case(accumulate=3))
    rows = touched(32) * 4
    assert traffic["forward"] == pytest.approx(3 * compulsory_bytes(case())["forward"])
    assert traffic["backward"] == pytest.approx(4 * (3 * WEIGHTS + 5 * (WEIGHTS + rows)))
    assert traffic["optimizer"] == compulsory_bytes(case())["optimizer"]


def test_a_tied_table_is_read_whole_and_once() -> None:
    tied = msgspec.structs.replace(UNTIED, tied_head=True)
    traffic = compulsory_bytes(case(tied))
    assert traffic["forward"] == 4 * n_parameters(tied) + 8 * 32
    assert traffic["backward"] == 4 * 2 * n_parameters(tied)


def test_learned_positions_are_read_as_far_as_the_sequence_reaches() -> None:
    learned = msgspec.structs.replace(UNTIED, positions="learned")
    more = {
        phase: value - compulsory_bytes(case())[phase]
        for phase, value in compulsory_bytes(case(learned)).items()
    }
    assert more["forward"] == pytest.approx(4 * 16 * 4)
    assert more["backward"] == pytest.approx(4 * 16 * 4)
    assert more["optimizer"] == 7 * 4 * 32 * 4


def test_touched_rows_never_exceed_the_table_or_the_tokens() -> None:
    ids_and_weights = 4 * WEIGHTS
    few = compulsory_bytes(case(batch_size=1, seq_len=1))["forward"] - ids_and_weights - 8
    many = compulsory_bytes(case(batch_size=5000))["forward"] - ids_and_weights - 8 * 5000 * 16
    assert few == pytest.approx(4 * 4 * 1)
    assert many == pytest.approx(4 * 4 * 50)


def test_only_experts_that_a_token_goes_to_move() -> None:
    shape = msgspec.structs.replace(UNTIED, n_experts=5, n_active_experts=2)
    one, router = 3 * 4 * 8, 5 * 4
    for n_tokens in (1, 2, 400):
        # Of five experts a token leaves three out.
        weights = WEIGHTS + router + (5 * (1 - (3 / 5) ** n_tokens) - 1) * one
        rows = touched(n_tokens) * 4
        traffic = compulsory_bytes(case(shape, batch_size=n_tokens, seq_len=1, accumulate=3))
        assert traffic["forward"] == pytest.approx(3 * (4 * (weights + rows) + 8 * n_tokens))
        assert traffic["backward"] == pytest.approx(4 * (3 * weights + 5 * (weights + rows)))
        assert traffic["optimizer"] == 7 * 4 * n_parameters(shape)


def test_one_token_moves_exactly_the_experts_that_it_chose() -> None:
    shape = msgspec.structs.replace(UNTIED, n_experts=5, n_active_experts=2)
    fewer = msgspec.structs.replace(UNTIED, n_experts=2, n_active_experts=2)
    at = [compulsory_bytes(case(each, batch_size=1, seq_len=1)) for each in (shape, fewer)]
    assert at[0]["forward"] - at[1]["forward"] == pytest.approx(4 * (5 - 2) * 4)


@pytest.mark.parametrize(
    ("precision", "size"),
    [("fp32", 4), ("tf32", 4), ("bf16-mixed", 4), ("fp16-mixed", 4), ("fp8", 4), ("bf16", 2)],
)
def test_only_bf16_stores_halves(precision: Precision, size: int) -> None:
    at = case(precision=precision)
    assert parameter_bytes(at) == size
    assert compulsory_bytes(at)["optimizer"] == 7 * size * n_parameters(UNTIED)


def test_a_pass_moves_only_what_its_phases_do() -> None:
    assert list(compulsory_bytes(case(pass_="forward"))) == ["forward"]
    assert list(compulsory_bytes(case(pass_="forward_backward"))) == ["forward", "backward"]


def test_adamw_on_the_largest_size_moves_a_known_amount() -> None:
    # 3,406,809,600 parameters · 7 accesses · 2 bytes: 11 ms at 4.26 TB/s.
    at = case(model("2.7B"), precision="bf16", batch_size=4, seq_len=512)
    assert compulsory_bytes(at)["optimizer"] == 47_695_334_400


@pytest.mark.parametrize(
    ("weights", "block_bytes"),
    [
        # 4 · 128² and 2 · 128 · 256 elements; a scale of 2 bytes for each of 4 · 128 + 256 + 128 outputs.
        ("int8", 131_072 + 2 * 896),
        # The last matrix has two groups of inputs for each of its 128 outputs.
        ("int4:128", 65_536 + 2 * (896 + 128)),
    ],
)
def test_quantised_weights_are_read_with_their_scales(
    weights: StoredWeights, block_bytes: int
) -> None:
    shape = msgspec.structs.replace(
        UNTIED, d_model=128, d_ff=256, n_heads=2, n_kv_heads=2, head_dim=64, gated=False
    )
    dense = case(shape, "bf16", pass_="decode")
    settings = msgspec.structs.replace(dense.configuration, weights=weights)
    quantised = msgspec.structs.replace(dense, configuration=settings)
    spared = compulsory_bytes(dense)["forward"] - compulsory_bytes(quantised)["forward"]
    assert spared == 2 * 131_072 - block_bytes


# Stored bytes of a block's matrices, by hand and as a step holds them.


@pytest.mark.parametrize(
    ("stored", "row_bits"),
    [
        (BF16, 300 * 16),
        (WeightFormat(type="fp32"), 300 * 32),
        (INT8, 300 * 8 + 16),
        (WeightFormat(type="fp8"), 300 * 8 + 16),
        (WeightFormat(type="int8", zero_points=True), 300 * 8 + 16 + 8),
        (WeightFormat(type="int4"), 300 * 4 + 16),
        # 300 inputs are two whole groups of 128 and a short one.
        (INT4, 300 * 4 + 3 * 16),
        (WeightFormat(type="int4", group_size=128, zero_points=True), 300 * 4 + 3 * (16 + 4)),
    ],
)
def test_a_row_has_its_elements_and_a_scale_a_group(stored: WeightFormat, row_bits: int) -> None:
    assert matrix_bytes((300, 64), stored) == 64 * row_bits / 8


def test_a_matrix_takes_whole_bytes() -> None:
    assert matrix_bytes((3, 1), WeightFormat(type="int4")) == 4  # 12 bits and a scale


def test_int4_in_groups_of_128_with_zero_points_has_4_15625_bits_a_weight() -> None:
    awq = WeightFormat(type="int4", group_size=128, zero_points=True)
    assert 8 * matrix_bytes((4096, 14_336), awq) / (4096 * 14_336) == 4.15625


@pytest.mark.parametrize("weights", ["int8", "int4:128", "int4:32-calibrated"])
def test_a_step_reads_what_serving_counts(weights: StoredWeights) -> None:
    """The packed tensors of its layers have as many bytes as the matrices that are packed in them."""
    case = ModelCase(
        model=model("llama-3-8b"),
        workload=Workload(batch_size=1, seq_len=64, pass_="decode"),
        configuration=Configuration(precision="bf16", weights=weights),
        device="cuda",
    )
    stored = QUANTISED[weights]
    of_a_block = sum(
        part.n_bytes for each in layers(plan(case)) for part in stored.kept(each.n_in, each.n_out)
    )
    assert quantised_bytes(case) == 32 * of_a_block
    bits = 8 * of_a_block * 32 / quantised_elements(case)
    # A scale of 16 bits for 4,096 or 14,336 inputs, or for 128 or 32.
    by_group = {"int4:128": 4.125, "int4:32-calibrated": 4.5}
    assert bits == by_group[weights] if weights in by_group else 8 < bits < 8.004


def test_a_sum_is_of_each_by_itself() -> None:
    assert sum_bytes(((300, 64), (3, 1)), INT8) == 64 * 302 + 5
