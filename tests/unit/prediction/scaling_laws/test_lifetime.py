"""The cheapest model over its life: against the paper, the closed form, and its neighbours."""

from math import inf, nan

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.models.scaling_fits import SCALING_FITS, scaling_fit
from peakward.prediction.scaling_laws.lifetime import lifetime_optimal
from peakward.prediction.scaling_laws.training import compute_optimal
from peakward.records.errors import PeakwardError
from peakward.records.plan import ScalingFit

HOFFMANN = scaling_fit("hoffmann-2022")
SARDANA = msgspec.structs.replace(
    HOFFMANN, name="sardana-2023", parameter_exponent=0.336, token_exponent=0.283
)
"""The coefficients of Sardana et al.: Hoffmann's, with the exponents to three digits."""
fits = st.sampled_from(SCALING_FITS)
budgets = st.floats(18, 26).map(lambda exponent: 10.0**exponent)
demands = st.floats(8, 16).map(lambda exponent: 10.0**exponent)


def cost(fit: ScalingFit, loss: float, n_parameters: float, weighed_tokens: float) -> float:
    """Weighed FLOPs of the model of that size that reaches the loss."""
    term = loss - fit.irreducible_loss
    term -= fit.parameter_coefficient / n_parameters**fit.parameter_exponent
    if term <= 0:
        return inf
    n_tokens: float = (fit.token_coefficient / term) ** (1 / fit.token_exponent)
    return 6 * n_parameters * n_tokens + 2 * n_parameters * weighed_tokens


def test_the_papers_example() -> None:
    """Sardana et al., figure 1: who would train a 13 B model compute-optimally and serve 2e12
    tokens saves 1.7e22 FLOPs, 17%, with a 7 B model of the same loss."""
    planned = compute_optimal(4.4966e22, SARDANA)
    assert planned.n_parameters == pytest.approx(13e9, rel=1e-4)
    found = lifetime_optimal(planned.loss, 2e12, SARDANA)
    without = planned.training_flops + 2 * planned.n_parameters * 2e12
    assert found.training.n_parameters == pytest.approx(7e9, rel=0.01)
    assert without - found.lifetime_flops == pytest.approx(1.7e22, rel=0.01)
    assert 1 - found.lifetime_flops / without == pytest.approx(0.17, abs=0.005)


@given(budgets, fits)
def test_a_model_that_is_never_served_is_the_compute_optimal_one(
    flops: float, fit: ScalingFit
) -> None:
    best = compute_optimal(flops, fit)
    found = lifetime_optimal(best.loss, 0.0, fit)
    assert found.training.n_parameters == pytest.approx(best.n_parameters, rel=1e-6)
    assert found.training.n_tokens == pytest.approx(best.n_tokens, rel=1e-6)
    assert found.lifetime_flops == found.training.training_flops


@given(budgets, demands, fits, st.floats(0.01, 100), st.floats(0.5, 2))
def test_the_optimum_reaches_the_loss_and_beats_its_neighbours(
    flops: float, served_tokens: float, fit: ScalingFit, price: float, times: float
) -> None:
    loss = compute_optimal(flops, fit).loss
    found = lifetime_optimal(loss, served_tokens, fit, relative_price=price)
    assert found.training.loss == pytest.approx(loss, rel=1e-12)
    size = found.training.n_parameters
    best = found.training.training_flops + price * found.serving_flops
    assert best == pytest.approx(cost(fit, loss, size, price * served_tokens), rel=1e-6)
    neighbour = cost(fit, loss, times * size, price * served_tokens)
    assert best <= neighbour * (1 + 1e-9)


@given(budgets, demands, fits, st.floats(1.1, 100))
def test_more_demand_has_a_smaller_model_trained_longer(
    flops: float, served_tokens: float, fit: ScalingFit, times: float
) -> None:
    loss = compute_optimal(flops, fit).loss
    plans = [
        lifetime_optimal(loss, demand, fit)
        for demand in (0.0, served_tokens, times * served_tokens)
    ]
    sizes = [plan.training.n_parameters for plan in plans]
    tokens = [plan.training.n_tokens for plan in plans]
    assert sizes == sorted(sizes, reverse=True)
    assert tokens == sorted(tokens)


@given(budgets, demands, fits, st.floats(0.01, 100))
def test_a_price_weighs_as_demand_does(
    flops: float, served_tokens: float, fit: ScalingFit, price: float
) -> None:
    loss = compute_optimal(flops, fit).loss
    weighed = lifetime_optimal(loss, served_tokens, fit, relative_price=price)
    more = lifetime_optimal(loss, price * served_tokens, fit)
    assert weighed.training.n_parameters == pytest.approx(more.training.n_parameters, rel=1e-9)
    assert weighed.serving_flops == 2 * weighed.training.n_parameters * served_tokens


@pytest.mark.parametrize("loss", [1.69, 1.0, 900.0, nan, inf])
def test_a_loss_out_of_reach_is_refused(loss: float) -> None:
    with pytest.raises(PeakwardError, match=r"expected a target_loss above 1.69 and below 819"):
        lifetime_optimal(loss, 1e12, HOFFMANN)


def test_a_loss_close_to_the_lowest_is_still_solved() -> None:
    found = lifetime_optimal(1.69 + 1e-6, 1e15, HOFFMANN)
    assert found.training.loss - 1.69 == pytest.approx(1e-6, rel=1e-6)


@pytest.mark.parametrize("amount", [-1.0, nan, inf])
def test_amounts_that_are_none_are_refused(amount: float) -> None:
    with pytest.raises(PeakwardError, match="expected served_tokens of at least 0, got"):
        lifetime_optimal(2.0, amount, HOFFMANN)
    with pytest.raises(PeakwardError, match="expected relative_price above 0, got"):
        lifetime_optimal(2.0, 1e12, HOFFMANN, relative_price=amount)
