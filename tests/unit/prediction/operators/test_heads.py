"""Which reshapes copy, held to torch's own views."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.prediction.operators.heads import by_rows, dense, is_view, swapped

untimed = settings(max_examples=150, deadline=None)
sizes = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple)


@st.composite
def reshapes(draw):
    """A shape, two of its dimensions to swap, and a shape of as many elements."""
    shape = draw(sizes)
    i, j = draw(st.integers(0, len(shape) - 1)), draw(st.integers(0, len(shape) - 1))
    rest, target = math.prod(shape), []
    while rest > 1:
        divisors = [each for each in range(2, rest + 1) if rest % each == 0]
        target.append(draw(st.sampled_from(divisors)))
        rest //= target[-1]
    ones = draw(st.lists(st.integers(0, len(target)), max_size=2))
    for position in ones:
        target.insert(position, 1)
    return shape, i, j, tuple(target)


@given(reshapes())
@untimed
def test_a_reshape_is_a_view_where_torch_has_one(reshape):
    shape, i, j, target = reshape
    tensor = torch.empty(shape).transpose(i, j)
    try:
        tensor.view(target)
        possible = True
    except RuntimeError:
        possible = False
    assert is_view(tuple(tensor.shape), tensor.stride(), target) == possible


@given(sizes)
@untimed
def test_dense_strides_are_those_of_torch(shape):
    assert dense(shape) == torch.empty(shape).stride()


def test_swapping_leaves_the_rest():
    assert swapped((5, 6, 7, 8), 1, 2) == (5, 7, 6, 8)
    assert swapped((5, 6), -1, -2) == (6, 5)


@given(st.tuples(*[st.integers(1, 4)] * 4))
@untimed
def test_rows_are_where_heads_lie_side_by_side(shape):
    batch, heads, seq, size = shape
    tensor = torch.empty(batch, seq, heads, size).transpose(1, 2)
    assert (tuple(tensor.shape), tensor.stride()) == (shape, by_rows(shape))
