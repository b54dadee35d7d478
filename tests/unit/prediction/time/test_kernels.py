"""The table of kernels against the operators that there are."""

import pytest

from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.time.kernels import (
    ELEMENTS_PER_SM_S,
    JOINED_ELEMENTS_PER_SM_S,
    KERNELS,
    LONG_ROW,
    LONG_ROW_FACTORS,
    WIDENED_ELEMENTS_PER_SM_S,
)

from .round_device import case


def names(made):
    return {each.name.removeprefix("aten.") for each in op_graph(made).operators}


def test_every_kernel_is_of_an_operator_of_some_step():
    met = (
        names(case("small", precision="bf16-mixed", optimizer="adamw-fused"))
        | names(case("gpt2", precision="bf16", optimizer="adamw-triton"))
        | names(case("small", attention="sdpa-math"))
    )
    assert set(KERNELS) - met == set()


def test_nothing_moves_its_bytes_faster_than_an_addition():
    assert min(each.factor for each in KERNELS.values()) >= 1.0
    assert all(each.n_launches >= 1 and each.start_s >= 0 for each in KERNELS.values())


@pytest.mark.parametrize("name", LONG_ROW_FACTORS)
def test_a_row_that_is_read_again_takes_longer(name):
    assert LONG_ROW_FACTORS[name] > KERNELS[name].factor


def test_the_vocabulary_of_the_sizes_is_a_short_row_and_gpt2s_a_long_one():
    assert case("small").model.vocab_size < LONG_ROW < case("gpt2").model.vocab_size


def test_an_h200_makes_350_billion_elements_a_second():
    assert pytest.approx(350e9) == 132 * ELEMENTS_PER_SM_S
    assert ELEMENTS_PER_SM_S > JOINED_ELEMENTS_PER_SM_S > WIDENED_ELEMENTS_PER_SM_S
