"""SwiGLU that writes fp8 against its reference, and networks of it against fp64."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from peakward.kernels.ops.fp8_linear.api import LEAST_CAPABILITY, fp8_linear, fp8_scales
from peakward.kernels.ops.fp8_swiglu import reference
from peakward.kernels.ops.fp8_swiglu.api import fp8_swiglu_network
from peakward.kernels.ops.swiglu.api import swiglu
from rows import poisoned
from tiers import drawn_in_full

kernel = pytest.importorskip("peakward.kernels.ops.fp8_swiglu.triton")
SIDES = st.integers(1, 8).map(lambda n: 16 * n)


@pytest.fixture(autouse=True)
def _has_e4m3(device):
    if device.type == "cuda" and torch.cuda.get_device_capability() < LEAST_CAPABILITY:
        pytest.skip("no e4m3 before compute capability 8.9")


def numbers(rows, _columns, scale):
    return rows.double() * scale.double()


@drawn_in_full(15)
@given(m=SIDES, width=SIDES, seed=st.integers(0, 99))
@example(m=80, width=112, seed=0)
@example(m=16, width=16, seed=0)
def test_results_are_the_references(device, dtypes, m, width, seed):
    torch.manual_seed(seed)
    settings = kernel.TileSettings(32, 64, 4)  # Several programs.
    for source in dtypes:
        mine, theirs = fp8_scales(device), fp8_scales(device)
        for size in (1, 1, 3, 1000, 1):  # At last it falls out of the window's range.
            packed = (torch.randn(m, 2 * width) * size).to(source)
            gradient = (torch.randn(m, width) * size).to(source)
            with poisoned():
                found = (
                    kernel.forward(packed, mine.x, settings),
                    kernel.backward(gradient, packed, mine.gradient, settings),
                )
            expected = (
                reference.forward(packed, theirs.x),
                reference.backward(gradient, packed, theirs.gradient),
            )
            for got, wanted, step in zip(found, expected, (2.0**-3, 2.0**-2), strict=True):
                assert torch.equal(got[0].t().contiguous().float(), got[1].float())
                assert torch.equal(got[2], wanted[2])
                # Where exp errs by its last bit, a number may round to the other side.
                apart = (numbers(*got) - numbers(*wanted)).abs()
                kind = torch.finfo(got[0].dtype)
                least = float(got[2]) * kind.smallest_normal * kind.eps
                assert (apart <= step * numbers(*wanted).abs() + least).all()
                assert float((apart > 0).float().mean()) < 1e-3


def plain(x, up, down):
    gate, value = F.linear(x, up).chunk(2, -1)
    return F.linear(F.silu(gate) * value, down)


def apart_in_fp8(x, up, down, up_scales, down_scales):
    return fp8_linear(swiglu(fp8_linear(x, up, None, up_scales)), down, None, down_scales)


def outcome(function, *given):
    *inputs, upstream = given
    leaves = [each.detach().clone().requires_grad_() for each in inputs]
    y = function(*leaves)
    y.backward(upstream.to(y.dtype))
    return [y.detach(), *(each.grad for each in leaves)]


def drawn(dtype):
    torch.manual_seed(0)
    x, up, down = torch.randn(2, 24, 64), torch.randn(2 * 96, 64) / 8, torch.randn(64, 96) / 10
    return x.to(dtype), up, down, torch.randn(2, 24, 64).to(dtype)


def scaled(function, device):
    return partial(function, up_scales=fp8_scales(device), down_scales=fp8_scales(device))


def relative(got, exact):
    return float((got.double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_network_errs_no_more_than_its_layers_apart(device, dtype):
    given = drawn(dtype)
    exact = outcome(plain, *(each.double() for each in given))
    mine, apart = scaled(fp8_swiglu_network, device), scaled(apart_in_fp8, device)
    for _ in range(2):
        found = outcome(mine, *given)
        for got, theirs, wanted in zip(found, outcome(apart, *given), exact, strict=True):
            assert got.dtype == theirs.dtype
            assert relative(got, wanted) <= 1.1 * relative(theirs, wanted)
            assert relative(got, wanted) > 2.0**-8  # It is fp8.


def test_without_gradients_it_is_its_layers_by_their_own_scales(device):
    x, up, down, _ = drawn(torch.float32)
    scales = fp8_scales(device), fp8_scales(device)
    with torch.no_grad():
        found = fp8_swiglu_network(x, up.requires_grad_(), down, *scales)
        assert torch.equal(found, fp8_linear(swiglu(fp8_linear(x, up)), down))
    assert not any(each.any() for held in scales for each in held)


def test_frozen_parts_are_left_out(device):
    x, up, down, upstream = drawn(torch.float32)
    whole = outcome(scaled(fp8_swiglu_network, device), x, up, down, upstream)
    for at in range(3):
        given = [each.clone().requires_grad_(n == at) for n, each in enumerate((x, up, down))]
        scaled(fp8_swiglu_network, device)(*given).backward(upstream)
        assert torch.equal(given[at].grad, whole[1 + at])
        assert all(each.grad is None for n, each in enumerate(given) if n != at)


def test_a_recomputed_network_rounds_as_the_first_time(device):
    mine, theirs = scaled(fp8_swiglu_network, device), scaled(fp8_swiglu_network, device)

    def recomputed(*inputs):
        return checkpoint(mine, *inputs, use_reentrant=False)

    for size in (1, 30, 1):
        x, up, down, upstream = drawn(torch.float32)
        given = (x * size, up, down, upstream * size)
        assert all(map(torch.equal, outcome(recomputed, *given), outcome(theirs, *given)))


def test_is_an_operator_that_torch_can_compile(device):
    given = drawn(torch.float32)
    packed, gradient = torch.randn(48, 192), torch.randn(48, 96)
    ops = torch.ops.peakward
    history = fp8_scales(device).x
    torch.library.opcheck(ops.fp8_swiglu.default, (packed, history))
    torch.library.opcheck(ops.fp8_swiglu_backward.default, (gradient, packed, history))
    eager = scaled(fp8_swiglu_network, device)
    compiled = torch.compile(
        scaled(fp8_swiglu_network, device), fullgraph=True, backend="aot_eager"
    )
    for _ in range(2):
        assert all(map(torch.equal, outcome(compiled, *given), outcome(eager, *given)))


def test_says_what_it_cannot_take(device):
    scales = fp8_scales(device), fp8_scales(device)
    x, up, down = torch.randn(16, 32), torch.randn(48, 32), torch.randn(32, 24)
    with pytest.raises(ValueError, match="fp8_swiglu: expected d_ff in multiples of 16, got 24"):
        fp8_swiglu_network(x.requires_grad_(), up, down, *scales)
    with pytest.raises(ValueError, match="expected tokens in multiples of 16, got 15"):
        fp8_swiglu_network(x[:15], up, down, *scales)
