"""Weights rounded for their inputs, and smoothed int8 activations, held to what defines them."""

import pytest
import torch

from peakward.kernels.ops.quantized_matmul import calibrated, reference

GROUP = 64


def correlated(rows, k, seed):
    """Inputs that share a few causes, as those of a layer do."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(16, k, generator=generator)
    causes = torch.randn(rows, 16, generator=generator)
    return causes @ mixing + 0.3 * torch.randn(rows, k, generator=generator)


def weight_of(n, k, seed=0):
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed))


def error(held, weight, x):
    """The squared error of the product, in fp64."""
    product = reference.int4_matmul(x.double(), *held)
    return float((product - x.double() @ weight.double().mT).square().sum())


@pytest.mark.parametrize("seed", range(3))
def test_the_product_of_correlated_inputs_errs_less_than_by_rounding_to_nearest(seed):
    x, weight = correlated(512, 128, seed), weight_of(40, 128, seed)
    nearest = reference.int4_weight(weight, group=GROUP)
    held = calibrated.int4_weight(weight, x.mT @ x, group=GROUP)
    assert held[0].shape == nearest[0].shape
    assert held[1].shape == nearest[1].shape
    assert error(held, weight, x) < 0.5 * error(nearest, weight, x)
    # Of inputs of the same causes that it has not seen, too.
    unseen = correlated(1024, 128, seed)[512:]
    assert error(held, weight, unseen) < 0.7 * error(nearest, weight, unseen)


def numbers(held):
    """From -8 to 7."""
    return reference.unpacked(held[0]).long() - 8


def test_uncorrelated_inputs_leave_rounding_to_the_nearest_of_the_steps():
    weight = weight_of(24, 192)[:, : 3 * GROUP]
    weight[3, :GROUP] = 0
    moment = torch.diag(torch.rand(192, generator=torch.Generator().manual_seed(1)) + 0.1)
    given = moment.double()
    held = calibrated.int4_weight(weight, given, group=GROUP)
    assert torch.equal(given, moment.double())
    step = reference.by_column(held[1], 192, torch.float32)
    nearest = torch.where(step == 0, 0, (weight / step).round().clamp(-8, 7))
    assert torch.equal(numbers(held)[:, :192], nearest.long())
    assert not step[3, :GROUP].any()


def test_an_error_goes_where_the_definition_says():
    """The column of the smallest inputs takes the errors of all others as least squares does, and is then
    rounded."""
    weight, x = weight_of(6, GROUP, 2), correlated(256, GROUP, 2)
    moment = (x.mT @ x).double()
    last = int(moment.diagonal().argmin())
    others = torch.arange(GROUP) != last
    stored, scale = calibrated.int4_weight(weight, moment, group=GROUP, damping=0.0)
    held = reference.int4_dequantized(stored, scale, None, torch.float64, group=GROUP)
    done = held - weight.double()
    best = -(done[:, others] @ moment[others, last]) / moment[last, last]
    wanted = weight[:, last].double() + best
    step = scale[0].double()
    expected = (wanted / step).round().clamp(-8, 7) * step
    assert torch.allclose(held[:, last], expected, rtol=1e-5, atol=1e-6)


def test_columns_are_rounded_in_the_order_of_their_inputs_wherever_they_stand():
    weight, x = weight_of(12, 2 * GROUP), correlated(512, 2 * GROUP, 4)
    x = x * torch.linspace(0.5, 2, 2 * GROUP)
    drawn = torch.Generator().manual_seed(5)
    places = torch.cat([GROUP * at + torch.randperm(GROUP, generator=drawn) for at in (0, 1)])
    moved = x[:, places]
    plain = calibrated.int4_weight(weight, (x.mT @ x).double(), group=GROUP)
    found = calibrated.int4_weight(weight[:, places], (moved.mT @ moved).double(), group=GROUP)
    assert torch.allclose(found[1], plain[1])
    assert (numbers(found) != numbers(plain)[:, places]).float().mean() < 0.01


def test_steps_of_either_sign_use_all_numbers_and_err_less_than_symmetric_ones():
    weight = weight_of(200, 4 * GROUP)
    grouped, squares = weight.unflatten(1, (-1, GROUP)), torch.ones(4, GROUP)
    step = calibrated.steps(grouped, squares)
    least, most = grouped.aminmax(dim=-1)
    assert torch.equal(step < 0, most > -least)
    found = calibrated.int4_weight(weight, torch.eye(4 * GROUP), group=GROUP)
    assert set(numbers(found).unique().tolist()) == set(range(-8, 8))
    held = reference.int4_dequantized(*found, None, torch.float32, group=GROUP)
    symmetric = reference.int4_rounded(weight, group=GROUP)
    assert (held - weight).norm() < 0.9 * (symmetric - weight).norm()


def test_steps_look_at_what_inputs_make_of_an_error():
    """An outlier whose input is nearly nothing may be clipped, and others are then told apart better."""
    weight = weight_of(50, GROUP)
    weight[:, 7] = 6.0
    squares = torch.ones(1, GROUP)
    kept = calibrated.steps(weight[:, None], squares).abs()
    squares[0, 7] = 1e-3
    assert (calibrated.steps(weight[:, None], squares).abs() < kept).all()


@pytest.mark.parametrize(
    ("moment", "group", "said"),
    [
        (torch.eye(96), 64, "divides 96"),
        (torch.eye(96), 48, "expected a group of 32, 64, 128"),
        (torch.zeros(96, 96), 32, "not all 0"),
        (torch.eye(64), 32, r"expected the moment \(96, 96\)"),
    ],
)
def test_what_cannot_calibrate_is_refused(moment, group, said):
    with pytest.raises(ValueError, match=said):
        calibrated.int4_weight(weight_of(4, 96), moment, group=group)


def with_outliers(rows, k):
    """A few channels are a hundred times the others, as in the residual stream of large models."""
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(3))
    x[:, [5, 40, 77]] *= 100
    return x


def test_smoothing_leaves_the_product_and_takes_outliers_from_its_error():
    x, weight = with_outliers(128, 96), weight_of(32, 96)
    factors = calibrated.smoothing(x.abs().amax(0), weight)
    exact = x.double() @ weight.double().mT
    moved = (x.double() / factors.double()) @ (weight.double() * factors.double()).mT
    assert float((moved - exact).norm() / exact.norm()) < 1e-14

    def by_int8(inputs, matrix):
        product = calibrated.int8_by_int8(inputs, *reference.int8_weight(matrix))
        return float((product.double() - exact).norm() / exact.norm())

    plain, smoothed = by_int8(x, weight), by_int8(x / factors, weight * factors)
    assert smoothed < 0.5 * plain
    ones = calibrated.smoothing(x.abs().amax(0) * 0, weight)
    assert torch.equal(ones, torch.ones(96))


def test_int8_by_int8_is_the_product_of_integers():
    x, weight = with_outliers(9, 128), weight_of(7, 128)
    x[4] = 0
    stored, scale = reference.int8_weight(weight)
    rows, row_scale = calibrated.int8_rows(x)
    whole = (rows.long() @ stored.long().mT).double()
    exact = whole * row_scale.double() * scale.double()
    found = calibrated.int8_by_int8(x, stored, scale)
    # One rounding of each scale's product in fp32; the sum of integers has none.
    assert torch.allclose(found.double(), exact, rtol=3 * 2.0**-24, atol=0)
    assert not found[4].any()
    assert float((rows.double() * row_scale.double() - x.double()).abs().max()) <= float(
        row_scale.max() * 0.5001
    )
