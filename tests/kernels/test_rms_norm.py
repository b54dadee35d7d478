"""The RMSNorm kernels against their reference in fp64, beside torch's own."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st

from oracle import assert_as_close_as, assert_same_specials
from peakward.kernels.ops.rms_norm import reference
from peakward.kernels.ops.rms_norm.api import add_rms_norm, rms_norm
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
kernel = pytest.importorskip("peakward.kernels.ops.rms_norm.triton")


def assert_backward(gradient, s_gradient, x, weight, r, back, own):
    """Of the x, and of the r that the forward pass gave, by the terms that cancel in it: an error of r is
    in y, whose bound it has."""
    wide = [None if each is None else each.double() for each in (gradient, x, weight)]
    r = r.view(*x.shape[:-1], 1).double()
    theirs = reference.rms_norm_backward(gradient, x, weight, r.float())
    exact = reference.rms_norm_backward(*wide, r)
    n = (wide[1] * r).abs()
    g = (wide[0] if weight is None else wide[0] * wide[2]).abs()
    terms = r * (g + n * (g * n).mean(-1, keepdim=True))
    added = 0 if s_gradient is None else s_gradient
    assert_sum_as_close_as(theirs[0] + added, back, exact[0] + added, terms + abs(added))
    if weight is None:
        assert own is None
    else:
        terms = (wide[0].abs() * n).flatten(0, -2).sum(0)
        assert_sum_as_close_as(theirs[1].to(weight.dtype), own, exact[1], terms)


@drawn_in_full(15)
@given(shape=SHAPES, layout=LAYOUTS, wide_weight=st.booleans(), seed=st.integers(0, 99))
@example(shape=(2, 3, 40), layout="transposed", wide_weight=True, seed=0)
@example(shape=(1, 1000), layout="padded", wide_weight=False, seed=84)
def test_is_as_close_to_fp64_as_torch_is(device, dtypes, shape, layout, wide_weight, seed):
    torch.manual_seed(seed)
    for dtype in dtypes:
        x = drawn(shape, layout, dtype).requires_grad_()
        weight = torch.randn(shape[-1:], dtype=torch.float32 if wide_weight else dtype)
        weight.requires_grad_()
        gradient = drawn(shape, layout, dtype)
        with poisoned():
            y = rms_norm(x, shape[-1:], weight, EPS)
            back, own = torch.autograd.grad(y, (x, weight), gradient)
        wide = x.detach().double(), weight.detach().double()
        exact = reference.rms_norm(*wide, EPS)[0]
        rows = [drawn(shape, layout, dtype) for _ in range(8)]
        others = [
            (
                F.rms_norm(each, shape[-1:], weight, EPS),
                reference.rms_norm(each.double(), wide[1], EPS)[0],
            )
            for each in rows
        ]
        assert_as_close_as(F.rms_norm(x, shape[-1:], weight, EPS), y, exact, others)
        x, weight = x.detach(), weight.detach()
        r = torch.ops.peakward.add_rms_norm(x, None, weight, EPS)[2]
        assert_backward(gradient, None, x, weight, r, back, own)


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
            y, s = add_rms_norm(x, residual, weight, EPS)
            back, same, *own = torch.autograd.grad((y, s), inputs, (gradient, s_gradient))
        assert torch.equal(s, x + residual)
        assert torch.equal(back, same)
        s = s.detach()
        plain = None if weight is None else weight.detach()
        wide = s.double(), None if plain is None else plain.double()
        exact = reference.rms_norm(*wide, EPS)[0]
        r = torch.ops.peakward.add_rms_norm(x.detach(), residual.detach(), plain, EPS)[2]
        assert_as_close_as(F.rms_norm(s, shape[-1:], plain, EPS), y, exact)
        assert_backward(gradient, s_gradient, s, plain, r, back, own[0] if own else None)


@pytest.mark.parametrize(
    "chosen", [WHOLE[0], IN_PIECES[1], *in_full([WHOLE[1], IN_TWO, IN_PIECES[0]])]
)
@pytest.mark.parametrize("added", [False, True])
def test_tiles_of_every_kind(device, dtypes, chosen, added):
    torch.manual_seed(0)
    for dtype in dtypes:
        x, gradient, more = (torch.randn(9, 100).to(dtype) for _ in range(3))
        weight = torch.randn(100).to(dtype)
        residual = more if added else None
        with poisoned():
            y, s, r = kernel.rms_norm(x, residual, weight, EPS, chosen)
            s = x if s is None else s
            assert torch.equal(s, x + more if added else x)
            back, own = kernel.rms_norm_backward(gradient, residual, s, weight, r, chosen)
        exact, exact_r = reference.rms_norm(s.double(), weight.double(), EPS)
        assert_as_close_as(F.rms_norm(s, (100,), weight, EPS), y, exact)
        torch.testing.assert_close(r[:, None], exact_r.float())
        assert_backward(gradient, residual, s, weight, r, back, own)


@pytest.mark.parametrize("width", [2049, *in_full([3000, 5001])])
@pytest.mark.parametrize("added", [False, True])
def test_rows_of_two_tiles(device, dtypes, width, added):
    torch.manual_seed(0)
    for dtype in dtypes:
        x, residual = (torch.randn(5, width).to(dtype) for _ in range(2))
        weight = torch.randn(width).to(dtype)
        with poisoned():
            y, s, _ = kernel.rms_norm(x, residual if added else None, weight, EPS)
        s = x if s is None else s
        assert torch.equal(s, x + residual if added else x)
        exact, _ = reference.rms_norm(s.double(), weight.double(), EPS)
        assert_as_close_as(F.rms_norm(s, (width,), weight, EPS), y, exact)


@pytest.mark.parametrize("shape", [(3, 1000), (7, 2104), (1500, 1000)])
@pytest.mark.parametrize("chosen", SPREAD)
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("with_weight", [False, True])
def test_rows_spread_over_programs(device, dtypes, shape, chosen, added, with_weight):
    spreads(device)
    torch.manual_seed(0)
    for dtype in dtypes:
        x, more = (torch.randn(shape).to(dtype) for _ in range(2))
        weight = torch.randn(shape[1]).to(dtype) if with_weight else None
        with poisoned():
            y, s, r = kernel.rms_norm(x, more if added else None, weight, EPS, chosen)
        s = x if s is None else s
        assert torch.equal(s, x + more if added else x)
        exact, exact_r = reference.rms_norm(
            s.double(), None if weight is None else weight.double(), EPS
        )
        assert_as_close_as(F.rms_norm(s, shape[1:], weight, EPS), y, exact)
        torch.testing.assert_close(r[:, None], exact_r.float())


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
        r = kernel.rms_norm(x, None, weight, EPS).r
        found = []
        for _ in range(2):
            with poisoned():
                back, own = kernel.rms_norm_backward(gradient, residual, x, weight, r, chosen)
            found.append((back, own))
        assert_backward(gradient, residual, x, weight, r, back, own)
        for first, second in zip(*found, strict=True):
            assert first is second or torch.equal(first, second)


@pytest.mark.parametrize("width", [9000, 20001, 36000, 65536, 131072])
def test_wide_rows(device, dtypes, width):
    spreads(device)
    torch.manual_seed(0)
    for dtype in dtypes:
        x, gradient, weight = torch.randn(70, width), torch.randn(70, width), torch.randn(width)
        x, gradient, weight = (each.to(dtype) for each in (x, gradient, weight))
        y, s, _ = kernel.rms_norm(x, gradient, weight, EPS)
        exact, _ = reference.rms_norm(s.double(), weight.double(), EPS)
        assert_as_close_as(F.rms_norm(s, (width,), weight, EPS), y, exact)
        r = kernel.rms_norm(x, None, weight, EPS).r
        back, own = kernel.rms_norm_backward(gradient, None, x, weight, r)
        assert_backward(gradient, None, x, weight, r, back, own)


def test_a_wrong_value_reaches_its_own_row_where_rows_are_spread(device):
    spreads(device)
    x, gradient = torch.randn(40, 1000), torch.randn(40, 1000)
    x[3, 999] = torch.nan
    gradient[5, 0] = torch.inf
    weight = torch.ones(1000)
    y, _, r = kernel.rms_norm(x, None, weight, EPS, SPREAD[0])
    assert (~y.isfinite()).all(1).nonzero().flatten().tolist() == [3]
    assert y.isnan().sum() == 1000
    back, own = kernel.rms_norm_backward(gradient, None, x, weight, r, SPREAD[0])
    wrong = ~back.isfinite().all(1)
    assert wrong.nonzero().flatten().tolist() == [3, 5]
    assert back[3].isnan().all()
    assert own.isnan().all()


def test_equal_inputs_give_equal_weight_gradients(device):
    x, gradient, weight = torch.randn(300, 40), torch.randn(300, 40), torch.randn(40)
    r = kernel.rms_norm(x, None, weight, EPS).r
    first, second = (kernel.rms_norm_backward(gradient, None, x, weight, r)[1] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("chosen", [WHOLE[0], IN_PIECES[0]])
def test_specials_stand_where_torch_has_them(device, dtypes, chosen):
    for dtype in dtypes:
        x, weight = torch.randn(4, 100).to(dtype), torch.ones(100, dtype=dtype)
        x[0, 3] = torch.nan
        x[1, 70] = torch.inf
        x[2, 5] = -torch.inf
        mine = kernel.rms_norm(x, None, weight, EPS, chosen).y
        assert_same_specials(F.rms_norm(x, (100,), weight, EPS), mine)


def test_epsilon_is_torchs(device, dtypes):
    for dtype in dtypes:
        x = torch.full((1, 4), 1e-4, dtype=dtype)
        torch.testing.assert_close(rms_norm(x, (4,)), F.rms_norm(x, (4,)))


def test_a_gradient_of_the_sum_alone_reaches_both(device):
    x, residual = (torch.randn(3, 20, requires_grad=True) for _ in range(2))
    _, s = add_rms_norm(x, residual, None, EPS)
    gradient = torch.randn(3, 20)
    for each in torch.autograd.grad(s, (x, residual), gradient):
        assert torch.equal(each, gradient)


def test_is_an_operator_that_torch_can_compile(device):
    x, residual, weight = torch.randn(4, 33), torch.randn(4, 33), torch.randn(33)
    leaves = [each.requires_grad_() for each in (x, residual, weight)]
    ops = torch.ops.peakward
    torch.library.opcheck(ops.add_rms_norm.default, (*leaves, EPS))
    torch.library.opcheck(ops.add_rms_norm.default, (x, None, None, EPS))
    plain = [each.detach() for each in leaves]
    torch.library.opcheck(
        ops.add_rms_norm_backward.default, (plain[0], None, *plain[1:], torch.ones(4))
    )

    def loss(x, residual, weight):
        y, s = add_rms_norm(x, residual, weight, EPS)
        return (y * rms_norm(s, (33,), weight)).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    mine = torch.autograd.grad(compiled(*leaves), leaves)
    for each, same in zip(mine, torch.autograd.grad(loss(*leaves), leaves), strict=True):
        torch.testing.assert_close(each, same)


def test_says_what_it_cannot_take(device):
    x = torch.randn(2, 3)
    with pytest.raises(ValueError, match="expected normalized_shape"):
        rms_norm(x, (2, 3))
    with pytest.raises(ValueError, match="expected a weight of shape"):
        rms_norm(x, (3,), torch.ones(2))
    with pytest.raises(ValueError, match="expected a residual of shape"):
        add_rms_norm(x, x.half())
    with pytest.raises(ValueError, match="expected x in float32"):
        rms_norm(x.double(), (3,))
    scalar = torch.tensor(1.0)
    for call in (lambda: rms_norm(scalar, ()), lambda: add_rms_norm(scalar, scalar)):
        with pytest.raises(ValueError, match=r"rms_norm: expected x of \(…, width\), got a scalar"):
            call()
