"""The LayerNorm kernels against their reference in fp64, beside torch's own."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st

from oracle import assert_same_specials
from peakward.kernels.ops.layer_norm import reference
from peakward.kernels.ops.layer_norm.api import add_layer_norm, layer_norm
from rows import (
    IN_PIECES,
    IN_TWO,
    LAYOUTS,
    SHAPES,
    SPREAD,
    WHOLE,
    assert_sum_as_close_as,
    drawn,
    poisoned,
    spreads,
)
from tiers import drawn_in_full, in_full

EPS = 1e-5
kernel = pytest.importorskip("peakward.kernels.ops.layer_norm.triton")


def doubled(*tensors):
    return [None if each is None else each.detach().double() for each in tensors]


def assert_forward(x, weight, bias, y):
    """By the terms that cancel in it, torch's being the reference where types are mixed."""
    same = all(each is None or each.dtype == x.dtype for each in (weight, bias))
    theirs = F.layer_norm(x, x.shape[-1:], weight, bias, EPS) if same else None
    if theirs is None:
        theirs = reference.layer_norm(x, weight, bias, EPS)[0]
    exact, mean, r = reference.layer_norm(*doubled(x, weight, bias), EPS)
    terms = (x.detach().double().abs() + mean.abs()) * r
    terms = terms if weight is None else terms * weight.detach().double().abs()
    assert_sum_as_close_as(theirs, y, exact, terms if bias is None else terms + bias.abs())


def torchs_and_exact(gradient, x, weight, stats):
    """Gradients of torch's kernels, with the mean and deviation that they kept, and exact ones. Where types
    are mixed, of torch's formulas in fp32 and exact ones with those that the forward pass gave: what a
    row's deviation errs by all of its elements share, and is in y, whose bound it has."""
    wide = doubled(gradient, x, weight)
    if weight is None or weight.dtype != x.dtype:
        mean, r = (each.view(*x.shape[:-1], 1) for each in stats)
        theirs = reference.layer_norm_backward(gradient, x, weight, mean, r)
        return theirs, reference.layer_norm_backward(*wide, mean.double(), r.double())
    _, mean, r = reference.layer_norm(wide[1], None, None, EPS)
    exact = reference.layer_norm_backward(*wide, mean, r)
    shape, bias = x.shape[-1:], torch.zeros_like(weight)
    _, mean, r = torch.native_layer_norm(x, shape, weight, bias, EPS)
    theirs = torch.ops.aten.native_layer_norm_backward(
        gradient, x, shape, mean, r, weight, bias, [True] * 3
    )
    return theirs, exact


def assert_backward(gradient, s_gradient, x, weight, stats, back, own, own_bias):
    """By the terms that cancel in it; `stats` are mean and r of the forward pass."""
    wide = doubled(gradient, x, weight)
    _, mean, r = reference.layer_norm(wide[1], None, None, EPS)
    theirs, exact = torchs_and_exact(gradient, x, weight, stats)
    n = (wide[1].abs() + mean.abs()) * r
    g = (wide[0] if weight is None else wide[0] * wide[2]).abs()
    terms = r * (g + g.mean(-1, keepdim=True) + n * (g * n).mean(-1, keepdim=True))
    added = 0 if s_gradient is None else s_gradient
    assert_sum_as_close_as(theirs[0] + added, back, exact[0] + added, terms + abs(added))
    if own is not None:
        terms = (wide[0].abs() * n).flatten(0, -2).sum(0)
        assert_sum_as_close_as(theirs[1].to(own.dtype), own, exact[1], terms)
    if own_bias is not None:
        terms = wide[0].abs().flatten(0, -2).sum(0)
        assert_sum_as_close_as(theirs[2].to(own_bias.dtype), own_bias, exact[2], terms)


@drawn_in_full(15)
@given(shape=SHAPES, layout=LAYOUTS, wide=st.booleans(), seed=st.integers(0, 99))
@example(shape=(2, 3, 40), layout="transposed", wide=True, seed=0)
def test_is_as_close_to_fp64_as_torch_is(device, dtypes, shape, layout, wide, seed):
    torch.manual_seed(seed)
    for dtype in dtypes:
        x = drawn(shape, layout, dtype).requires_grad_()
        own_type = torch.float32 if wide else dtype
        weight, bias = (
            torch.randn(shape[-1:], dtype=own_type, requires_grad=True) for _ in range(2)
        )
        gradient = drawn(shape, layout, dtype)
        with poisoned():
            y = layer_norm(x, shape[-1:], weight, bias, EPS)
            found = torch.autograd.grad(y, (x, weight, bias), gradient)
        x, weight, bias = x.detach(), weight.detach(), bias.detach()
        assert_forward(x, weight, bias, y)
        stats = torch.ops.peakward.add_layer_norm(x, None, weight, bias, EPS)[2:]
        assert_backward(gradient, None, x, weight, stats, *found)


@drawn_in_full(10)
@given(shape=SHAPES, layout=LAYOUTS, with_weight=st.booleans(), seed=st.integers(0, 99))
@example(shape=(2, 3, 40), layout="padded", with_weight=True, seed=0)
def test_adds_the_residual(device, dtypes, shape, layout, with_weight, seed):
    torch.manual_seed(seed)
    for dtype in dtypes:
        x, residual = (drawn(shape, layout, dtype).requires_grad_() for _ in range(2))
        weight = torch.randn(shape[-1:], dtype=dtype, requires_grad=True) if with_weight else None
        gradient, s_gradient = (drawn(shape, layout, dtype) for _ in range(2))
        inputs = (x, residual, weight) if with_weight else (x, residual)
        with poisoned():
            y, s = add_layer_norm(x, residual, weight, None, EPS)
            back, same, *own = torch.autograd.grad((y, s), inputs, (gradient, s_gradient))
        assert torch.equal(s, x + residual)
        assert torch.equal(back, same)
        s, plain = s.detach(), None if weight is None else weight.detach()
        assert_forward(s, plain, None, y)
        rows = x.detach(), residual.detach()
        _, _, *stats = torch.ops.peakward.add_layer_norm(*rows, plain, None, EPS)
        assert_backward(gradient, s_gradient, s, plain, stats, back, own[0] if own else None, None)


@pytest.mark.parametrize(
    "chosen", [WHOLE[0], IN_PIECES[1], *in_full([WHOLE[1], IN_TWO, IN_PIECES[0]])]
)
@pytest.mark.parametrize("added", [False, True])
def test_tiles_of_every_kind(device, dtypes, chosen, added):
    torch.manual_seed(0)
    for dtype in dtypes:
        x, gradient, more = (torch.randn(9, 100).to(dtype) for _ in range(3))
        weight, bias = torch.randn(100).to(dtype), torch.randn(100).to(dtype)
        residual = more if added else None
        with poisoned():
            y, s, mean, r = kernel.layer_norm(x, residual, weight, bias, EPS, chosen)
            s = x if s is None else s
            assert torch.equal(s, x + more if added else x)
            found = kernel.layer_norm_backward(gradient, residual, s, weight, bias, mean, r, chosen)
        _, exact_mean, exact_r = reference.layer_norm(s.double(), None, None, EPS)
        torch.testing.assert_close(mean[:, None], exact_mean.float())
        torch.testing.assert_close(r[:, None], exact_r.float())
        assert_forward(s, weight, bias, y)
        assert_backward(gradient, residual, s, weight, (mean, r), *found)


@pytest.mark.parametrize("width", [2049, *in_full([3000, 5001])])
@pytest.mark.parametrize("added", [False, True])
def test_rows_of_two_tiles(device, dtypes, width, added):
    torch.manual_seed(0)
    for dtype in dtypes:
        x, residual = (torch.randn(5, width).to(dtype) for _ in range(2))
        weight, bias = (torch.randn(width).to(dtype) for _ in range(2))
        with poisoned():
            y, s, _, _ = kernel.layer_norm(x, residual if added else None, weight, bias, EPS)
        s = x if s is None else s
        assert torch.equal(s, x + residual if added else x)
        assert_forward(s, weight, bias, y)


@pytest.mark.parametrize("shape", [(3, 1000), (7, 2104), (1500, 1000)])
@pytest.mark.parametrize("chosen", SPREAD)
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("mean", [0, 1000])
def test_rows_spread_over_programs(device, dtypes, shape, chosen, added, mean):
    spreads(device)
    torch.manual_seed(0)
    for dtype in dtypes:
        x, more = ((torch.randn(shape) + mean).to(dtype) for _ in range(2))
        weight, bias = (torch.randn(shape[1]).to(dtype) for _ in range(2))
        if mean:
            weight, bias = None, None
        with poisoned():
            found = kernel.layer_norm(x, more if added else None, weight, bias, EPS, chosen)
        s = x if found.s is None else found.s
        assert torch.equal(s, x + more if added else x)
        assert_forward(s, weight, bias, found.y)
        _, exact_mean, exact_r = reference.layer_norm(s.double(), None, None, EPS)
        torch.testing.assert_close(found.mean, exact_mean.flatten().float())
        if not mean:
            torch.testing.assert_close(found.r, exact_r.flatten().float())


@pytest.mark.parametrize("shape", [(1, 1000), (7, 2104), (1500, 1000)])
@pytest.mark.parametrize("chosen", SPREAD)
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("with_weight", [False, True])
def test_gradients_of_rows_spread_over_programs(device, dtypes, shape, chosen, added, with_weight):
    spreads(device)
    torch.manual_seed(0)
    for dtype in dtypes:
        x, gradient, more = (torch.randn(shape).to(dtype) for _ in range(3))
        weight = torch.randn(shape[1]).to(dtype) if with_weight else None
        residual = more if added else None
        _, _, mean, r = kernel.layer_norm(x, None, weight, weight, EPS)
        found = []
        for _ in range(2):
            with poisoned():
                found.append(
                    kernel.layer_norm_backward(
                        gradient, residual, x, weight, weight, mean, r, chosen
                    )
                )
        assert_backward(gradient, residual, x, weight, (mean, r), *found[0])
        for first, second in zip(*found, strict=True):
            assert first is second or torch.equal(first, second)


@pytest.mark.parametrize("width", [9000, 20001, 36000, 65536, 131072])
def test_wide_rows(device, dtypes, width):
    spreads(device)
    torch.manual_seed(0)
    for dtype in dtypes:
        x, gradient, weight = torch.randn(70, width), torch.randn(70, width), torch.randn(width)
        x, gradient, weight = (each.to(dtype) for each in (x, gradient, weight))
        y, s, _, _ = kernel.layer_norm(x, gradient, weight, weight, EPS)
        assert_forward(s, weight, weight, y)
        _, _, mean, r = kernel.layer_norm(x, None, weight, weight, EPS)
        found = kernel.layer_norm_backward(gradient, None, x, weight, weight, mean, r)
        assert_backward(gradient, None, x, weight, (mean, r), *found)


@pytest.mark.parametrize("chosen", [WHOLE[0], IN_PIECES[0]])
def test_a_large_mean_leaves_the_variance_its_digits(device, chosen):
    x = torch.randn(4, 100) + 1000
    assert_forward(x, None, None, kernel.layer_norm(x, None, None, None, EPS, chosen).y)


def test_equal_inputs_give_equal_parameter_gradients(device):
    x, gradient, weight = torch.randn(300, 40), torch.randn(300, 40), torch.randn(40)
    _, _, mean, r = kernel.layer_norm(x, None, weight, weight, EPS)
    first, second = (
        kernel.layer_norm_backward(gradient, None, x, weight, weight, mean, r) for _ in range(2)
    )
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, second.bias)


@pytest.mark.parametrize("chosen", [WHOLE[0], IN_PIECES[0]])
def test_specials_stand_where_torch_has_them(device, dtypes, chosen):
    for dtype in dtypes:
        x, weight = torch.randn(4, 100).to(dtype), torch.ones(100, dtype=dtype)
        x[0, 3] = torch.nan
        x[1, 70] = torch.inf
        x[2, 5] = -torch.inf
        mine = kernel.layer_norm(x, None, weight, None, EPS, chosen).y
        assert_same_specials(F.layer_norm(x, (100,), weight, None, EPS), mine)


def test_a_gradient_of_the_sum_alone_reaches_both(device):
    x, residual = (torch.randn(3, 20, requires_grad=True) for _ in range(2))
    _, s = add_layer_norm(x, residual)
    gradient = torch.randn(3, 20)
    for each in torch.autograd.grad(s, (x, residual), gradient):
        assert torch.equal(each, gradient)


def test_is_an_operator_that_torch_can_compile(device):
    x, residual, weight, bias = (torch.randn(shape) for shape in ((4, 33), (4, 33), 33, 33))
    leaves = [each.requires_grad_() for each in (x, residual, weight, bias)]
    ops = torch.ops.peakward
    torch.library.opcheck(ops.add_layer_norm.default, (*leaves, EPS))
    torch.library.opcheck(ops.add_layer_norm.default, (x, None, None, None, EPS))
    plain = [each.detach() for each in leaves]
    statistics = (torch.zeros(4), torch.ones(4))
    torch.library.opcheck(
        ops.add_layer_norm_backward.default, (plain[0], None, *plain[1:], *statistics)
    )

    def loss(x, residual, weight, bias):
        y, s = add_layer_norm(x, residual, weight, bias)
        return (y * layer_norm(s, (33,), weight)).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    mine = torch.autograd.grad(compiled(*leaves), leaves)
    for each, same in zip(mine, torch.autograd.grad(loss(*leaves), leaves), strict=True):
        torch.testing.assert_close(each, same)


def test_says_what_it_cannot_take(device):
    x = torch.randn(2, 3)
    with pytest.raises(ValueError, match="expected normalized_shape"):
        layer_norm(x, (2, 3))
    with pytest.raises(ValueError, match="expected a weight of shape"):
        layer_norm(x, (3,), torch.ones(2))
    with pytest.raises(ValueError, match="expected a bias of shape"):
        layer_norm(x, (3,), None, torch.ones(2))
    with pytest.raises(ValueError, match="expected a residual of shape"):
        add_layer_norm(x, x.half())
    with pytest.raises(ValueError, match="expected x in float32"):
        layer_norm(x.double(), (3,))
    scalar = torch.tensor(1.0)
    for call in (lambda: layer_norm(scalar, ()), lambda: add_layer_norm(scalar, scalar)):
        with pytest.raises(
            ValueError, match=r"layer_norm: expected x of \(…, width\), got a scalar"
        ):
            call()
