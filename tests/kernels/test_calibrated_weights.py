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


def test_uncorrelated_inputs_leave_rounding_to_nearest():
    weight = weight_of(24, 192)
    weight[3, :GROUP] = 0
    moment = torch.diag(torch.rand(192, generator=torch.Generator().manual_seed(1)) + 0.1)
    given = moment.double()
    held = calibrated.int4_weight(weight, given, group=GROUP)
    assert torch.equal(given, moment.double())
    nearest = reference.int4_weight(weight, group=GROUP)
    assert torch.equal(reference.unpacked(held[0]), reference.unpacked(nearest[0]))
    assert torch.equal(held[1], nearest[1])


def test_an_error_goes_where_the_definition_says():
    """The last column takes the errors of all others as least squares does, and is then rounded."""
    weight, x = weight_of(6, GROUP, 2), correlated(256, GROUP, 2)
    moment = (x.mT @ x).double()
    stored, scale = calibrated.int4_weight(weight, moment, group=GROUP, damping=0.0)
    held = reference.int4_dequantized(stored, scale, None, torch.float64, group=GROUP)
    done = held - weight.double()
    best = -(done[:, :-1] @ moment[:-1, -1]) / moment[-1, -1]
    wanted = weight[:, -1].double() + best
    step = scale[0].double()
    expected = (wanted / step).round().clamp(-7, 7) * step
    assert torch.allclose(held[:, -1], expected, rtol=1e-5, atol=1e-6)


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
