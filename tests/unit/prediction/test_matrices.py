"""Stored bytes of a block's matrices, by hand and as a step holds them."""

import pytest

from peakward.levers.weights import QUANTISED
from peakward.models.presets import model
from peakward.prediction.matrices import matrix_bytes, sum_bytes
from peakward.prediction.operators.linear import layers
from peakward.prediction.operators.plan import plan
from peakward.prediction.traffic import quantised_bytes, quantised_elements
from peakward.records.case import Configuration, ModelCase, StoredWeights, Workload
from peakward.records.inference import WeightFormat

from .inference.served import BF16, INT4, INT8


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


@pytest.mark.parametrize("weights", ["int8", "int4:128"])
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
    # A scale of 16 bits for 4,096 or 14,336 inputs, or for 128.
    assert bits == 4.125 if weights == "int4:128" else 8 < bits < 8.004


def test_a_sum_is_of_each_by_itself() -> None:
    assert sum_bytes(((300, 64), (3, 1)), INT8) == 64 * 302 + 5
