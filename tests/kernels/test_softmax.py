"""The softmax kernels against their reference in fp64, beside torch's own."""

import math
import re

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ahead_of_time import compiled, entries
from oracle import assert_as_close_as, assert_same_specials
from peakward.kernels.ops.rows.layout import RowSettings
from peakward.kernels.ops.softmax import reference
from peakward.kernels.ops.softmax.api import softmax
from rows import IN_PIECES, IN_TWO, LAYOUTS, SHAPES, WHOLE, assert_sum_as_close_as, drawn, poisoned
from tiers import drawn_in_full, in_full

kernel = pytest.importorskip("peakward.kernels.ops.softmax.triton")


def with_gradient(function, x, gradient):
    x = x.detach().requires_grad_()
    y = function(x)
    y.backward(gradient)
    return y.detach(), x.grad


def assert_gradient_of(y, gradient, back):
    """Of the y that was given: an error of y's would come out magnified where g - Σ g·y cancels."""
    theirs = torch._softmax_backward_data(gradient, y, -1, y.dtype)
    exact = reference.softmax_backward(gradient.double(), y.double(), torch.float64)
    share = gradient.double().abs() * y.double()
    terms = share + y * share.sum(-1, keepdim=True)
    assert_sum_as_close_as(theirs, back, exact, terms)


ROWS = 32
"""Judged together: a row's values share the error of its sum, so that one row's is luck (of 60 draws
0.4 times torch's in the median, 3.4 at worst)."""


@drawn_in_full(8)
@given(shape=SHAPES, layout=LAYOUTS, seed=st.integers(0, 99))
@example(shape=(20, 17), layout="padded", seed=0)
def test_is_as_close_to_fp64_as_torch_is(device, dtypes, shape, layout, seed):
    torch.manual_seed(seed)
    for dtype in dtypes:
        triples, gradients = [], []
        for _ in range(1 + ROWS // max(1, math.prod(shape[:-1]))):
            x, gradient = drawn(shape, layout, dtype) * 3, drawn(shape, layout, dtype)
            with poisoned():
                y, back = with_gradient(softmax, x, gradient)
            triples.append((torch.softmax(x, -1), y, torch.softmax(x.double(), -1)))
            gradients.append((y, gradient, back))
        assert_as_close_as(*(torch.cat(each) for each in zip(*triples, strict=True)))
        assert_gradient_of(*(torch.cat(each) for each in zip(*gradients, strict=True)))


@pytest.mark.parametrize(
    "chosen",
    [
        WHOLE[0],
        IN_PIECES[1],
        *in_full([WHOLE[1], IN_TWO, IN_PIECES[0], RowSettings(1, 65536, 32)]),
    ],
)
@pytest.mark.parametrize("width", [97, *in_full([96])])
def test_tiles_of_every_kind(device, dtypes, chosen, width):
    torch.manual_seed(0)
    for dtype in dtypes:
        x, gradient = torch.randn(9, width).to(dtype), torch.randn(9, width).to(dtype)
        exact = reference.softmax(x.double(), torch.float64)
        with poisoned():
            y = kernel.softmax(x, dtype, chosen)
            back = kernel.softmax_backward(gradient, y, dtype, chosen)
        assert_as_close_as(torch.softmax(x, -1), y, exact)
        assert_gradient_of(y, gradient, back)


@pytest.mark.parametrize("width", [5001, *in_full([2500, 18000, 36001, 48000])])
def test_rows_of_two_tiles(device, dtypes, width):
    torch.manual_seed(0)
    for dtype in dtypes:
        x, gradient = torch.randn(5, width).to(dtype), torch.randn(5, width).to(dtype)
        y = kernel.softmax(x, dtype)
        assert_as_close_as(torch.softmax(x, -1), y, reference.softmax(x.double(), torch.float64))
        assert_gradient_of(y, gradient, kernel.softmax_backward(gradient, y, dtype))


@pytest.mark.parametrize(("width", "padding"), [(15, 8), (3, 0)])
def test_rows_of_few_whole_vectors_or_none(device, dtypes, width, padding):
    torch.manual_seed(0)
    for dtype in dtypes:
        both = torch.randn(2, 16, width + padding).to(dtype)
        x, gradient = both[..., :width]
        one = RowSettings(rows=1, columns=32, warps=4)
        with poisoned():
            y = kernel.softmax(x, dtype, one)
            back = kernel.softmax_backward(gradient, y, dtype, one)
        assert_as_close_as(torch.softmax(x, -1), y, torch.softmax(x.double(), -1))
        assert_gradient_of(y, gradient, back)


@pytest.mark.parametrize("chosen", [WHOLE[0], IN_PIECES[0]])
def test_specials_stand_where_torch_has_them(device, dtypes, chosen):
    for dtype in dtypes:
        x = torch.randn(8, 100).to(dtype)
        x[0, 3] = torch.nan
        x[1, 70] = torch.inf
        x[2, 5] = -torch.inf
        x[3] = -torch.inf
        x[4, :99] = -torch.inf
        x[5] = torch.finfo(dtype).min
        x[6, 1:] = torch.finfo(dtype).min
        mine, theirs = kernel.softmax(x, dtype, chosen), torch.softmax(x, -1)
        assert_same_specials(theirs, mine)
        torch.testing.assert_close(mine[4:7], theirs[4:7])
        gradient = torch.ones_like(x)
        gradient[6, 2], gradient[7, 9] = torch.nan, torch.inf
        assert_same_specials(
            torch._softmax_backward_data(gradient, theirs, -1, dtype),
            kernel.softmax_backward(gradient, theirs, dtype, chosen),
        )


@pytest.mark.full
@pytest.mark.parametrize("capability", [80, 90])
def test_compiled_for_a_gpu_odd_rows_are_moved_by_whole_vectors_but_for_their_edges(
    capability, tmp_path
):
    compiled("softmax_odd", capability, ptx=tmp_path)
    # The edges of a row: its inputs once, its outputs once; of so wide a row the gradient is read twice.
    for name, edges, vectors in (("_forward_rows", 2, 16), ("_backward_rows", 3, 32)):
        words = re.findall(r"(?:ld|st)\.global[\w.:]*", entries(tmp_path, name)[-1])
        assert len([word for word in words if word.endswith(".v4.b32")]) == vectors
        assert len([word for word in words if word.endswith(".b16")]) == edges
        assert len(words) == vectors + edges


def test_another_type_is_given_as_torch_gives_it(device, dtypes):
    x, gradient = torch.randn(3, 50).to(torch.float16), torch.randn(3, 50)
    y, back = with_gradient(lambda x: softmax(x, -1, torch.float32), x, gradient)
    assert_as_close_as(torch.softmax(x, -1, torch.float32), y, torch.softmax(x.double(), -1))
    exact = reference.softmax_backward(gradient.double(), y.double(), torch.float64)
    assert_as_close_as(exact.to(torch.float16), back, exact)


def test_takes_an_expanded_gradient(device, dtypes):
    x = torch.randn(3, 50, requires_grad=True)
    softmax(x).sum().backward()
    assert float(x.grad.abs().max()) < 1e-6


def test_is_an_operator_that_torch_can_compile(device, dtypes):
    x = torch.randn(4, 33, requires_grad=True)
    for dtype in (torch.float32, torch.float16):
        torch.library.opcheck(torch.ops.peakward.softmax.default, (x, dtype))
    y = x.detach()
    torch.library.opcheck(torch.ops.peakward.softmax_backward.default, (y, y, torch.float32))
    compiled = torch.compile(softmax, fullgraph=True, backend="aot_eager")
    gradient = torch.randn(4, 33)
    for mine, same in zip(
        with_gradient(compiled, x, gradient), with_gradient(softmax, x, gradient), strict=True
    ):
        assert torch.equal(mine, same)


def test_says_what_it_cannot_take(device):
    with pytest.raises(ValueError, match="expected the last of 2 dimensions, got 0"):
        softmax(torch.randn(2, 3), 0)
    with pytest.raises(ValueError, match="expected x in float32, float16 or bfloat16"):
        softmax(torch.randn(2, 3).double())
    with pytest.raises(ValueError, match="expected a result in float32"):
        softmax(torch.randn(2, 3), dtype=torch.float64)
