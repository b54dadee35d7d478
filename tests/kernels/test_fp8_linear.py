"""fp8 casts against their reference, and linear layers of them against fp64."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from peakward.kernels.ops.fp8_linear import api, reference
from peakward.kernels.ops.fp8_linear.api import fp8_linear, fp8_scales
from peakward.kernels.ops.fp8_linear.scales import FALL, FIRST, LENGTH, NEXT, WINDOW
from rows import poisoned
from tiers import drawn_in_full

kernel = pytest.importorskip("peakward.kernels.ops.fp8_linear.triton")
E4M3, E5M2 = reference.E4M3, reference.E5M2
BOTH_TYPES = pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=["e4m3", "e5m2"])
ROUNDOFF = {E4M3: 2.0**-4, E5M2: 2.0**-3}
"""Half a step at 1 of 3 and of 2 bits of mantissa."""
SIDES = st.integers(1, 12).map(lambda n: 16 * n)


@pytest.fixture(autouse=True)
def _has_e4m3(device):
    if device.type == "cuda" and torch.cuda.get_device_capability() < api.LEAST_CAPABILITY:
        pytest.skip("no e4m3 before compute capability 8.9")


def same(mine, expected):
    """Bit for bit, where NaN is NaN."""
    return torch.equal(
        mine.float().nan_to_num(nan=-1e6), expected.float().nan_to_num(nan=-1e6)
    ) and (mine.dtype == expected.dtype)


@drawn_in_full(15)
@given(m=SIDES, k=SIDES, padding=st.sampled_from([0, 3, 16]), seed=st.integers(0, 99))
@example(m=144, k=272, padding=0, seed=0)
@example(m=16, k=16, padding=1, seed=0)
def test_casts_are_the_references(device, dtypes, m, k, padding, seed):
    torch.manual_seed(seed)
    for source in (*dtypes, torch.bfloat16):
        x = (torch.randn(m, k + padding) * 3).to(source)[:, padding:]
        for dtype in (E4M3, E5M2):
            scale = reference.scale_of(x, dtype)
            expected = reference.cast_both(x, scale, dtype)
            with poisoned():
                mine = api.fp8_both(x, scale, dtype)
                rows = api.fp8_rows(x, scale, dtype)
            assert all(map(same, mine, expected))
            assert all(each.is_contiguous() for each in mine)
            assert same(rows, expected[0])


@pytest.mark.parametrize(
    "settings", [kernel.TileSettings(32, 64, 4), kernel.TileSettings(64, 32, 4)], ids=str
)
def test_a_matrix_of_several_tiles(device, settings):
    x = torch.randn(80, 112)
    scale = reference.scale_of(x, E4M3)
    with poisoned():
        mine = kernel.cast_both(x, scale, E4M3, settings)
    assert all(map(same, mine, reference.cast_both(x, scale, E4M3)))


def test_a_matrix_that_lies_transposed(device):
    x = torch.randn(48, 32).t()
    scale = reference.scale_of(x, E5M2)
    assert all(map(same, api.fp8_both(x, scale, E5M2), reference.cast_both(x, scale, E5M2)))


@BOTH_TYPES
@pytest.mark.parametrize("size", [1e-8, 1.0, 1e20])
def test_a_scale_is_that_of_a_window_with_the_tensor_alone(device, dtype, size):
    x = torch.randn(32, 48) * size
    history = fp8_scales(device).x
    rows, scale = api.fp8_delayed_rows(x, history, dtype)
    assert torch.equal(scale, reference.scale_of(x, dtype))
    assert same(rows, api.fp8_rows(x, scale, dtype))


@BOTH_TYPES
def test_what_is_not_finite_makes_the_scale_nan(device, dtype):
    for strange in (torch.nan, torch.inf, -torch.inf):
        x = torch.ones(16, 16)
        x[1, 2] = strange
        assert reference.scale_of(x, dtype).isnan()


@BOTH_TYPES
def test_beyond_the_range_is_the_largest_number_and_nan_stays(device, dtype):
    x = torch.zeros(16, 16)
    x[0, :4] = torch.tensor([1e9, -1e9, torch.inf, torch.nan])
    largest = torch.finfo(dtype).max
    rows, columns = api.fp8_both(x, torch.ones(()), dtype)
    assert rows[0, :3].float().tolist() == [largest, -largest, largest]
    assert rows[0, 3].isnan()
    assert same(columns, rows.t().contiguous())


# Delayed scales.

SIZES = st.lists(
    st.sampled_from([0.0, 1e-9, 0.1, 1.0, 1.5, 3.0, 1e6, float("inf"), float("nan")]),
    min_size=1,
    max_size=WINDOW + 4,
)


@drawn_in_full(15)
@given(m=SIDES, k=SIDES, padding=st.sampled_from([0, 3]), sizes=SIZES, seed=st.integers(0, 99))
@example(m=80, k=112, padding=0, sizes=[1.0, 2.0, 1e6] + [1.0] * (WINDOW + 1), seed=0)
@example(m=16, k=16, padding=0, sizes=[0.0, 1.0, float("nan"), 1.0, float("inf"), 0.0], seed=0)
def test_delayed_casts_and_their_histories_are_the_references(device, m, k, padding, sizes, seed):
    torch.manual_seed(seed)
    settings = kernel.TileSettings(32, 64, 4)  # Several programs.
    for dtype in (E4M3, E5M2):
        mine, alone, theirs = (fp8_scales(device).x for _ in range(3))
        for size in sizes:
            x = torch.randn(m, k + padding)[:, padding:] * (size if 0 <= size < 1e30 else 1)
            x[3, 5] = size
            expected = reference.cast_delayed(x, theirs, dtype)
            with poisoned():
                found = kernel.cast_delayed_both(x, mine, dtype, settings)
                rows = kernel.cast_delayed_rows(x, alone, dtype, settings)
            assert all(map(same, found, expected))
            assert all(map(same, rows, expected[::2]))
            assert torch.equal(mine, theirs) and torch.equal(alone, theirs)


@BOTH_TYPES
def test_an_empty_history_loses_nothing_and_later_growth_neither(device, dtype):
    history = fp8_scales(device).x
    for size in (1e-6, 1.0, 1e6, 1e3):
        x = torch.randn(48, 64) * size
        rows, _, scale = api.fp8_delayed_both(x, history, dtype)
        told = rows.float() * scale
        assert not (rows.float().abs() == torch.finfo(dtype).max).any()
        assert float((told - x).norm() / x.norm()) <= ROUNDOFF[dtype] / 3**0.5


def test_one_outlier_costs_no_later_use_its_digits(device):
    x, weight, _, upstream = drawn(torch.float32, bias=False)
    exact = outcome(F.linear, *(each.double() for each in (x, weight)), None, upstream.double())
    scales = fp8_scales(device)
    scaled = partial(fp8_linear, scales=scales)
    for size in (1, 1e6, 1, 1, 1e-6, 1e-6):
        y, of_x, of_weight = outcome(scaled, x * size, weight, None, upstream * size)
        assert relative(y / size, exact[0]) <= 2**0.5 * ROUNDOFF[E4M3]
        assert relative(of_x / size, exact[1]) <= 2 * ROUNDOFF[E4M3]
        assert relative(of_weight / size / size, exact[2]) <= 2 * ROUNDOFF[E4M3]


@BOTH_TYPES
def test_what_falls_slowly_or_to_zero_keeps_the_windows_scale(device, dtype):
    """The second cast is one program's, milliseconds where the first takes tens of µs."""
    history, least = fp8_scales(device).x, FALL[dtype]
    seen = [
        float(api.fp8_delayed_rows(torch.full((16, 16), 2.0**-n), history, dtype)[1])
        for n in range(least + 2)
    ]
    assert seen[: least + 1] == [seen[0]] * (least + 1)
    assert seen[least + 1] == seen[0] * (2.0 ** -(least + 1) if least < WINDOW else 0.5)
    before = history[FIRST:].amax()
    scale = api.fp8_delayed_rows(torch.zeros(16, 16), history, dtype)[1]
    assert scale == reference.delayed_scale(before, dtype)


@BOTH_TYPES
def test_what_halves_at_every_use_is_seldom_cast_twice(device, dtype):
    history, twice = fp8_scales(device).x, 0
    for n in range(64):
        window = reference.delayed_scale(history[FIRST:].amax(), dtype)
        scale = api.fp8_delayed_rows(torch.full((16, 16), 2.0**-n), history, dtype)[1]
        twice += int(scale != window)
    assert twice <= {E4M3: 1 + 64 // 9, E5M2: 1}[dtype]


def test_a_history_that_holds_any_numbers_is_written_inside_of_its_window(device):
    for strange in (-7, 16, 2**31 - 1):
        around = torch.zeros(3 * LENGTH, dtype=torch.int32)
        history = around[LENGTH : 2 * LENGTH]
        history[NEXT] = strange
        api.fp8_delayed_rows(torch.ones(16, 16), history, E4M3)
        assert 0 <= int(history[NEXT]) < WINDOW
        assert int(history[FIRST:].count_nonzero()) == 1
        assert not around[:LENGTH].any() and not around[2 * LENGTH :].any()


def test_a_scale_is_forgotten_after_the_window(device):
    history = fp8_scales(device).x
    small, large = torch.ones(16, 16), torch.full((16, 16), 128.0)
    scales = [float(api.fp8_delayed_rows(large, history, E4M3)[1])]
    scales += [float(api.fp8_delayed_rows(small, history, E4M3)[1]) for _ in range(WINDOW + 1)]
    assert scales[:-1] == [scales[0]] * (WINDOW + 1)
    assert scales[-1] == scales[0] / 128


def test_a_scale_leaves_headroom_and_is_a_power_of_two(device):
    for dtype, least in ((E4M3, 2), (E5M2, 4)):
        largest = torch.finfo(dtype).max
        for amax in (1.0, 1.75, 1.7501, 448.0, 449.0, 3e-20, 7e20):
            bits = torch.tensor(amax).view(torch.int32)
            scale = float(reference.delayed_scale(bits, dtype))
            assert math.frexp(scale)[0] == 0.5
            headroom = scale * largest / float(torch.tensor(amax))
            assert least <= headroom < 2 * least


def test_nan_and_infinity_show_and_are_not_remembered(device):
    history = fp8_scales(device).x
    x = torch.randn(32, 32)
    api.fp8_delayed_rows(x, history, E4M3)
    before = history.clone()
    for strange in (torch.nan, torch.inf, -torch.inf):
        spoilt = x.clone()
        spoilt[1, 2] = strange
        assert api.fp8_delayed_rows(spoilt, history, E4M3)[1].isnan()
        assert torch.equal(history, before)


def test_zeros_stay_zeros(device):
    x = torch.zeros(16, 32)
    found = api.fp8_rows(x, reference.scale_of(x, E4M3), E4M3)
    assert not found.float().any()


def outcome(function, x, weight, bias, upstream):
    leaves = [each.detach().clone().requires_grad_() for each in (x, weight)]
    more = None if bias is None else bias.detach().clone().requires_grad_()
    y = function(*leaves, more)
    y.backward(upstream.to(y.dtype))
    return [y.detach(), *(each.grad for each in leaves), *([] if more is None else [more.grad])]


def drawn(dtype, bias):
    torch.manual_seed(0)
    x, weight = torch.randn(2, 24, 64).to(dtype), torch.randn(80, 64) / 8
    return x, weight, torch.randn(80) if bias else None, torch.randn(2, 24, 80).to(dtype)


def relative(got, exact):
    return float((got.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_those_of_the_rounded_operands(device, dtype, bias):
    """Beside the rounding of the result nothing is lost but what the casts lose: fp64 products of the
    same fp8 numbers."""
    x, weight, shift, upstream = drawn(dtype, bias)
    mine = outcome(fp8_linear, x, weight, shift, upstream)

    def rounded(each, kind):
        flat = each.reshape(-1, each.shape[-1])
        scale = reference.scale_of(flat, kind)
        return reference.cast_rows(flat, scale, kind).double() * scale.double()

    a, b, g = rounded(x, E4M3), rounded(weight, E4M3), rounded(upstream, E5M2)
    exact = [a @ b.t(), g @ b, g.t() @ a]
    if bias:
        exact[0] = exact[0] + shift.double()
        exact.append(upstream.double().flatten(0, -2).sum(0))
    types = [dtype, dtype, torch.float32, torch.float32]
    for got, wanted, kept in zip(mine, exact, types, strict=False):
        assert got.dtype == kept
        # A GPU accumulates fp8 products in some 14 bits (DeepSeek-V3, section 3.3.2).
        accumulated = 2.0**-10 if device.type == "cuda" else 2.0**-20
        bound = accumulated + 2 * torch.finfo(dtype).eps
        assert relative(got.reshape(wanted.shape), wanted) <= bound


@pytest.mark.parametrize("bias", [False, True])
def test_errs_as_its_types_round(device, bias):
    x, weight, shift, upstream = drawn(torch.bfloat16, bias)
    mine = outcome(fp8_linear, x, weight, shift, upstream)
    wide = [None if each is None else each.double() for each in (x, weight, shift, upstream)]
    exact = outcome(F.linear, *wide)
    # Each operand's roundings are independent, so that two of them add in squares.
    forward = 2**0.5 * ROUNDOFF[E4M3]
    backward = (ROUNDOFF[E4M3] ** 2 + ROUNDOFF[E5M2] ** 2) ** 0.5
    for got, wanted, bound in zip(mine[:3], exact[:3], (forward, backward, backward), strict=True):
        assert relative(got, wanted) <= bound
    assert relative(mine[0], exact[0]) > 2.0**-8  # It is fp8, not bf16.


@pytest.mark.parametrize("bias", [False, True])
def test_delayed_scales_err_as_their_types_round(device, bias):
    """At the first use and later, also where x and gradients have grown beyond what was seen."""
    x, weight, shift, upstream = drawn(torch.bfloat16, bias)
    scales = fp8_scales(device)
    forward = 2**0.5 * ROUNDOFF[E4M3]
    backward = (ROUNDOFF[E4M3] ** 2 + ROUNDOFF[E5M2] ** 2) ** 0.5
    for size in (1, 1, 3, 100, 1):
        given = (x * size, weight, shift, upstream * size)
        mine = outcome(partial(fp8_linear, scales=scales), *given)
        wide = [None if each is None else each.double() for each in given]
        exact = outcome(F.linear, *wide)
        bounds = (forward, backward, backward)
        for got, wanted, bound in zip(mine[:3], exact[:3], bounds, strict=True):
            assert relative(got, wanted) <= bound


def test_a_call_without_gradients_leaves_the_scales(device):
    x, weight, _, upstream = drawn(torch.float32, bias=False)
    scales = fp8_scales(device)
    outcome(partial(fp8_linear, scales=scales), x, weight, None, upstream)
    before = [each.clone() for each in scales]
    assert all(each[FIRST] for each in before)
    with torch.no_grad():
        assert torch.equal(fp8_linear(x * 9, weight, scales=scales), fp8_linear(x * 9, weight))
    assert all(map(torch.equal, scales, before))


def test_backward_passes_may_come_in_any_order(device):
    """As of a layer that is called twice before its backward passes."""
    x, weight, _, upstream = drawn(torch.float32, bias=False)
    w, scales = weight.clone().requires_grad_(), fp8_scales(device)
    first, second = (fp8_linear(each, w, scales=scales) for each in (x, 2 * x))
    second.backward(upstream)
    first.backward(upstream)
    alone = outcome(fp8_linear, x, weight, None, upstream)[2]
    assert relative(w.grad, 3 * alone.double()) < 2.0**-3


def test_a_recomputed_layer_rounds_as_the_first_time(device):
    x, weight, _, upstream = drawn(torch.float32, bias=False)
    plain, recomputed = fp8_scales(device), fp8_scales(device)

    def checkpointed(x, weight, _bias):
        return checkpoint(partial(fp8_linear, scales=recomputed), x, weight, use_reentrant=False)

    for size in (1, 5, 1):
        given = (x * size, weight, None, upstream * size)
        mine = outcome(checkpointed, *given)
        assert all(map(torch.equal, mine, outcome(partial(fp8_linear, scales=plain), *given)))


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_a_pass_without_gradients_rounds_as_the_same_with_them(device, is_reentrant):
    x, weight, _, upstream = drawn(torch.float32, bias=False)
    scales, seen = fp8_scales(device), []

    def kept(x):
        y = fp8_linear(x, weight, scales=scales)
        seen.append(y.detach())
        return y * y

    checkpoint(kept, x.requires_grad_(), use_reentrant=is_reentrant).backward(upstream)
    assert torch.equal(*seen)


def test_only_what_is_asked_for_is_differentiated(device):
    x, weight, _, upstream = drawn(torch.float32, bias=False)
    whole = outcome(fp8_linear, x, weight, None, upstream)
    leaf = x.clone().requires_grad_()
    fp8_linear(leaf, weight).backward(upstream)
    assert torch.equal(leaf.grad, whole[1])
    frozen = weight.clone().requires_grad_()
    fp8_linear(x, frozen).backward(upstream)
    assert torch.equal(frozen.grad, whole[2])
    with torch.no_grad():
        assert torch.equal(fp8_linear(leaf, frozen), whole[0])


def test_a_second_derivative_is_refused(device):
    x, weight, _, _ = drawn(torch.float32, bias=False)
    x, weight = x.requires_grad_(), weight.requires_grad_()
    (g,) = torch.autograd.grad(fp8_linear(x, weight).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        g.square().sum().backward()


def test_takes_the_meta_device():
    x, weight = (torch.randn(32, 64, device="meta", requires_grad=True) for _ in range(2))
    y = fp8_linear(x, weight, scales=fp8_scales("meta"))
    y.sum().backward()
    assert y.shape == (32, 32) and x.grad.shape == weight.grad.shape == (32, 64)


def test_the_input_is_kept_in_a_byte_an_element(device):
    x, weight, _, _ = drawn(torch.bfloat16, bias=False)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda each: each):
        fp8_linear(x.requires_grad_(), weight.requires_grad_())
    sizes = sorted(each.numel() * each.element_size() for each in kept)
    assert sizes == [4, 4, x.numel(), weight.numel()]


def test_is_an_operator_that_torch_can_compile(device):
    x, weight, bias, upstream = drawn(torch.float32, bias=True)
    flat, scale, ops = x.flatten(0, -2), torch.ones(()), torch.ops.peakward
    for each in (ops.fp8_linear_both, ops.fp8_linear_rows):
        torch.library.opcheck(each.default, (flat, scale, E4M3))
    for each in (ops.fp8_linear_delayed_both, ops.fp8_linear_delayed_rows):
        torch.library.opcheck(each.default, (flat, fp8_scales(device).x, E4M3))
    compiled = torch.compile(fp8_linear, fullgraph=True, backend="aot_eager")
    both = (outcome(each, x, weight, bias, upstream) for each in (compiled, fp8_linear))
    for mine, plain in zip(*both, strict=True):
        assert torch.equal(mine, plain)


def test_compiled_calls_change_the_scales_as_eager_ones(device):
    x, weight, bias, upstream = drawn(torch.float32, bias=True)
    mine, theirs = fp8_scales(device), fp8_scales(device)
    compiled = torch.compile(fp8_linear, fullgraph=True, backend="aot_eager")
    for size in (1, 5, 1):
        given = (x * size, weight, bias, upstream * size)
        found = outcome(partial(compiled, scales=mine), *given)
        assert all(map(torch.equal, found, outcome(partial(fp8_linear, scales=theirs), *given)))
        assert all(map(torch.equal, mine, theirs))


@pytest.mark.filterwarnings("ignore:Your compiler for AOTAutograd")
def test_compiled_layers_that_share_an_input_share_its_cast(device):
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def kept(graph, _inputs):
        graphs.append(graph)
        return graph

    x, weight, _, _ = drawn(torch.float32, bias=False)
    weights = [weight.clone().requires_grad_() for _ in range(3)]
    backend = aot_autograd(
        fw_compiler=kept,
        bw_compiler=kept,
        partition_fn=min_cut_rematerialization_partition,
    )
    compiled = torch.compile(
        lambda x, *weights: sum(fp8_linear(x, each) for each in weights), backend=backend
    )
    compiled(x.requires_grad_(), *weights).sum().backward()
    casts = [
        sum(node.target is torch.ops.peakward.fp8_linear_both.default for node in each.graph.nodes)
        for each in graphs
    ]
    assert casts == [1 + 3, 1]  # x and three weights; the gradient that the three share.


def test_says_what_it_cannot_take(device):
    x, weight = torch.randn(16, 32), torch.randn(48, 32)
    with pytest.raises(ValueError, match="expected tokens in multiples of 16, got 15"):
        fp8_linear(x[:15], weight)
    with pytest.raises(ValueError, match="expected inputs in multiples of 16, got 24"):
        fp8_linear(x[:, :24], weight[:, :24])
    with pytest.raises(ValueError, match="expected outputs in multiples of 16, got 47"):
        fp8_linear(x, weight[:47])
    with pytest.raises(ValueError, match="expected x in float32"):
        fp8_linear(x.double(), weight.double())
