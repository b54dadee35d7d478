"""Smaller models of one loss: by hand, and against the loss that they were trained to."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.models.scaling_fits import SCALING_FITS
from peakward.prediction.scaling_laws.lifetime import SERVING_FLOPS, lifetime_optimal
from peakward.prediction.scaling_laws.overtraining import (
    break_even_tokens,
    least_parameters,
    trained_to,
)
from peakward.prediction.scaling_laws.training import compute_optimal, predicted_loss, training_plan
from peakward.records.errors import PeakwardError
from peakward.records.plan import ScalingFit

HAND = ScalingFit(
    name="by hand",
    source="",
    irreducible_loss=1.0,
    parameter_coefficient=8.0,
    parameter_exponent=0.5,
    token_coefficient=27.0,
    token_exponent=1 / 3,
)
LARGE = training_plan("large", HAND, n_parameters=16, n_tokens=27)
"""Its loss is 1 + 8/4 + 27/3 = 12."""
fits = st.sampled_from(SCALING_FITS)


def test_the_tokens_by_hand():
    # 12 - 1 - 8/√64 leaves 10 to the data: D = 2.7³.
    assert trained_to(12.0, 64, HAND).n_tokens == pytest.approx(19.683)
    assert trained_to(12.0, 16, HAND).n_tokens == pytest.approx(27)


def test_the_least_size_by_hand():
    assert least_parameters(12.0, HAND) == pytest.approx((8 / 11) ** 2)


def test_the_payback_by_hand():
    # One parameter: 12 - 1 - 8 = 3, so D = 9³ = 729: 6·729 = 4374 FLOPs against 6·16·27 = 2592, of
    # which each served token gives back 2·(16 - 1).
    small = trained_to(12.0, 1, HAND)
    assert small.n_tokens == pytest.approx(729)
    assert break_even_tokens(small, LARGE, relative_price=1.0) == pytest.approx(59.4)
    assert break_even_tokens(small, LARGE, relative_price=2.0) == pytest.approx(29.7)


@given(fits, st.floats(18, 25), st.floats(0.3, 0.95), st.floats(0.1, 10))
def test_at_the_payback_both_lives_cost_the_same_and_have_one_loss(fit, power, size, price):
    optimum = compute_optimal(10**power, fit)
    small = trained_to(optimum.loss, size * optimum.n_parameters, fit)
    assert small.loss == pytest.approx(optimum.loss)
    assert small.training_flops > optimum.training_flops
    served = break_even_tokens(small, optimum, relative_price=price)
    costs = [
        each.training_flops + price * SERVING_FLOPS * each.n_parameters * served
        for each in (small, optimum)
    ]
    assert costs[0] == pytest.approx(costs[1])


@given(fits, st.floats(18, 25), st.floats(9, 14))
def test_the_lifetime_optimum_is_one_of_these(fit, power, served):
    optimum = compute_optimal(10**power, fit)
    best = lifetime_optimal(optimum.loss, 10**served, fit).training
    again = trained_to(optimum.loss, best.n_parameters, fit)
    assert again.n_tokens == pytest.approx(best.n_tokens, rel=1e-6)


@given(fits, st.floats(18, 25), st.floats(1.001, 10))
def test_below_the_least_size_nothing_reaches_the_loss(fit, power, times):
    loss = compute_optimal(10**power, fit).loss
    least = least_parameters(loss, fit)
    assert predicted_loss(fit, n_parameters=least / times, n_tokens=1e300) > loss
    with pytest.raises(PeakwardError, match=re.escape(f"more than {least:.3g} parameters")):
        trained_to(loss, least / times, fit)


def test_what_cannot_be_is_refused():
    with pytest.raises(PeakwardError, match=r"target_loss above 1\.0"):
        least_parameters(1.0, HAND)
    with pytest.raises(PeakwardError, match="n_parameters above 0"):
        trained_to(12.0, 0, HAND)
    with pytest.raises(PeakwardError, match="smaller than 16 parameters"):
        break_even_tokens(LARGE, LARGE, relative_price=1.0)
    with pytest.raises(PeakwardError, match="relative_price above 0"):
        break_even_tokens(trained_to(12.0, 1, HAND), LARGE, relative_price=0.0)
