"""Rows among groups, and a product of all groups in one kernel beside the loop over them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.prediction.operators import grouped_linear
from peakward.prediction.operators.grouped_linear import GroupedLinear, group_sizes
from peakward.prediction.operators.tape import BFLOAT, FLOAT, Tape, tensor
from peakward.prediction.operators.writer import Value, Writer


def layer(*, has_kernel, compute=BFLOAT, n_out=32):
    return GroupedLinear("up", 6, 16, n_out, FLOAT, compute, has_kernel, reads_ends=True)


def both_passes(made, n_rows):
    tape = Tape()
    x, ends = Value(tensor(FLOAT, n_rows, made.n_in)), Value(made.ends)
    saved, y = grouped_linear.forward(Writer(tape), made, x, ends)
    grouped_linear.backward(Writer(tape), saved, y, FLOAT)
    return tape.graph().operators


@given(st.integers(0, 5000), st.integers(1, 300))
def test_groups_have_all_rows_and_differ_by_one_at_most(n_rows, n_groups):
    sizes = group_sizes(n_rows, n_groups)
    assert sum(size * n for size, n in sizes) == n_rows
    assert sum(n for _, n in sizes) == n_groups
    assert sizes[-1][0] - sizes[0][0] in ((0,) if n_rows % n_groups == 0 else (1,))
    assert all(n > 0 for _, n in sizes)


@pytest.mark.parametrize("n_rows", [4, 6, 100])
def test_the_kernel_and_the_loop_multiply_as_much(n_rows):
    kernel, loop = (both_passes(layer(has_kernel=each), n_rows) for each in (True, False))
    flops = [sum(each.count * each.flops for each in found) for found in (kernel, loop)]
    assert flops == [3 * 2 * n_rows * 16 * 32] * 2
    assert {each.name for each in kernel if each.flops} == {"aten._grouped_mm"}
    assert {each.name for each in loop if each.flops} == {"aten.mm"}


def test_of_fewer_rows_than_groups_each_needs_one_groups_weights():
    for has_kernel in (True, False):
        operators = both_passes(layer(has_kernel=has_kernel), 4)
        read = sum(
            each.count * each.bytes_read
            for each in operators
            if each.flops and each.phase == "forward" and each.inputs[0].shape[-1] == 16
        )
        ends = 4 * 6 if has_kernel else 0
        assert read == 4 * 16 * 2 + ends + 4 * 16 * 32 * 2


def test_widths_that_are_no_multiple_of_16_bytes_have_no_kernel():
    assert layer(has_kernel=True).in_one_kernel
    assert not layer(has_kernel=True, n_out=36).in_one_kernel
    assert not layer(has_kernel=False).in_one_kernel
