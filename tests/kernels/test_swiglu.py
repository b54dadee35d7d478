"""The SwiGLU kernels against their reference in fp64, beside torch's own."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st

from oracle import assert_as_close_as, assert_same_specials
from peakward.kernels.ops.rows.layout import RowSettings
from peakward.kernels.ops.swiglu import reference
from peakward.kernels.ops.swiglu.api import gated_product, swiglu
from rows import LAYOUTS, SHAPES, drawn, poisoned
from tiers import drawn_in_full

kernel = pytest.importorskip("peakward.kernels.ops.swiglu.triton")


def theirs(x):
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def with_gradient(function, x, gradient):
    x = x.detach().requires_grad_()
    y = function(x)
    y.backward(gradient)
    return y.detach(), x.grad


@drawn_in_full(15)
@given(shape=SHAPES, layout=LAYOUTS, seed=st.integers(0, 99))
@example(shape=(2, 3, 40), layout="padded", seed=0)
def test_is_as_close_to_fp64_as_torch_is(device, dtypes, shape, layout, seed):
    torch.manual_seed(seed)
    for dtype in dtypes:
        x = drawn((*shape[:-1], 2 * shape[-1]), layout, dtype) * 3
        gradient = drawn(shape, layout, dtype)
        with poisoned():
            mine = with_gradient(swiglu, x, gradient)
        exact = with_gradient(theirs, x.double(), gradient.double())
        for each in zip(with_gradient(theirs, x, gradient), mine, exact, strict=True):
            assert_as_close_as(*each)


THEIRS = {"silu": F.silu, "gelu-tanh": partial(F.gelu, approximate="tanh")}
ACTIVATIONS = pytest.mark.parametrize("activation", THEIRS)


@ACTIVATIONS
@drawn_in_full(15)
@given(shape=SHAPES, layout=LAYOUTS, seed=st.integers(0, 99))
@example(shape=(3, 1000), layout="padded", seed=0)
def test_apart_it_is_as_close_to_fp64_as_torch_is(device, dtypes, activation, shape, layout, seed):
    torch.manual_seed(seed)
    apart = partial(written_out, THEIRS[activation])
    for dtype in dtypes:
        leaves = [drawn(shape, layout, dtype) * 3 for _ in range(2)]
        gradient = drawn(shape, layout, dtype)
        with poisoned():
            mine = with_gradients(partial(gated_product, activation=activation), leaves, gradient)
        exact = with_gradients(apart, [each.double() for each in leaves], gradient.double())
        for each in zip(with_gradients(apart, leaves, gradient), mine, exact, strict=True):
            assert_as_close_as(*each)
        gelu = activation != "silu"
        wide = reference.gated_product(*(each.double() for each in leaves), gelu=gelu)
        torch.testing.assert_close(wide, exact[0])


def written_out(activation, gate, up):
    return activation(gate) * up


def with_gradients(function, leaves, gradient):
    leaves = [each.detach().requires_grad_() for each in leaves]
    y = function(*leaves)
    y.backward(gradient)
    return y.detach(), *(each.grad for each in leaves)


@ACTIVATIONS
def test_apart_specials_stand_where_torch_has_them(device, dtypes, activation):
    for dtype in dtypes:
        special = torch.tensor([torch.nan, torch.inf, 0.0, 1.0, -20.0, 100.0]).to(dtype)
        gate, up = torch.meshgrid(special, special, indexing="ij")
        mine = gated_product(gate, up, activation=activation)
        assert_same_specials(THEIRS[activation](gate) * up, mine)


@ACTIVATIONS
def test_apart_it_is_an_operator_that_torch_can_compile(device, activation):
    gate, up = torch.randn(4, 33), torch.randn(4, 33)
    leaves, gelu = [each.clone().requires_grad_() for each in (gate, up)], activation != "silu"
    torch.library.opcheck(torch.ops.peakward.gated_product.default, (*leaves, gelu))
    torch.library.opcheck(torch.ops.peakward.gated_product_backward.default, (up, gate, up, gelu))
    product = partial(gated_product, activation=activation)
    compiled = torch.compile(product, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(gate, up), product(gate, up))


def test_a_row_of_several_tiles_and_a_tile_of_several_rows(device):
    x, gradient = torch.randn(9, 200), torch.randn(9, 100)
    exact = reference.swiglu(x.double())
    back = reference.swiglu_backward(gradient.double(), x.double())
    for chosen in (RowSettings(1, 32, 4), RowSettings(4, 128, 4), RowSettings(4, 32, 4)):
        with poisoned():
            assert_as_close_as(theirs(x), kernel.swiglu(x, chosen), exact)
            mine = kernel.swiglu_backward(gradient, x, chosen)
        assert_as_close_as(back.float(), mine, back)


def test_specials_stand_where_torch_has_them(device, dtypes):
    for dtype in dtypes:
        special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, 1.0, -200.0]).to(dtype)
        gate, up = torch.meshgrid(special, special, indexing="ij")
        x = torch.cat((gate, up), dim=-1)
        assert_same_specials(theirs(x), swiglu(x))
        finite = torch.cat((gate[3:], up[3:]), dim=-1)
        gradient = torch.ones(3, 6, dtype=dtype)
        mine, torchs = (with_gradient(each, finite, gradient)[1] for each in (swiglu, theirs))
        assert_same_specials(torchs, mine)


def test_is_an_operator_that_torch_can_compile(device):
    x, gradient = torch.randn(4, 66), torch.randn(4, 33)
    torch.library.opcheck(torch.ops.peakward.swiglu.default, (x.clone().requires_grad_(),))
    torch.library.opcheck(torch.ops.peakward.swiglu_backward.default, (gradient, x))
    compiled = torch.compile(swiglu, fullgraph=True, backend="aot_eager")
    both = (with_gradient(each, x, gradient) for each in (compiled, swiglu))
    for mine, same in zip(*both, strict=True):
        assert torch.equal(mine, same)


def test_says_what_it_cannot_take(device):
    with pytest.raises(ValueError, match="expected gate and up of one width"):
        swiglu(torch.randn(2, 3))
    with pytest.raises(ValueError, match="expected x in float32"):
        swiglu(torch.randn(2, 4).double())
    for other in (torch.randn(2, 3), torch.randn(2, 4).half()):
        with pytest.raises(ValueError, match="expected gate and up of one shape and type"):
            gated_product(torch.randn(2, 4), other)
    with pytest.raises(ValueError, match="expected the activation silu or gelu-tanh, got 'gelu'"):
        gated_product(torch.randn(2, 4), torch.randn(2, 4), activation="gelu")
