"""The closed-form optimum: against known models, against its neighbours, against the rule."""

from math import inf, nan

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.models.scaling_fits import SCALING_FITS, scaling_fit
from peakward.prediction.scaling_laws.training import (
    compute_optimal,
    predicted_loss,
    training_plan,
    twenty_tokens_a_parameter,
)
from peakward.records.errors import PeakwardError
from peakward.records.plan import ScalingFit

HOFFMANN, BESIROGLU = scaling_fit("hoffmann-2022"), scaling_fit("besiroglu-2024")
replace = msgspec.structs.replace
fits = st.sampled_from(SCALING_FITS)
budgets = st.floats(17, 28).map(lambda exponent: 10.0**exponent)


def test_the_loss_by_hand() -> None:
    fit = ScalingFit(
        name="by hand",
        source="",
        irreducible_loss=1.0,
        parameter_coefficient=8.0,
        parameter_exponent=0.5,
        token_coefficient=27.0,
        token_exponent=1 / 3,
    )
    assert predicted_loss(fit, n_parameters=16, n_tokens=27) == pytest.approx(1 + 2 + 9)


def test_the_loss_of_chinchilla_and_of_gopher_by_hoffmann() -> None:
    chinchilla = predicted_loss(HOFFMANN, n_parameters=70e9, n_tokens=1.4e12)
    gopher = predicted_loss(HOFFMANN, n_parameters=280e9, n_tokens=300e9)
    # As widely quoted: size, data and what remains, to three digits.
    assert chinchilla == pytest.approx(0.083 + 0.163 + 1.69, abs=1e-3)
    assert gopher == pytest.approx(0.052 + 0.251 + 1.69, abs=1e-3)


def test_besiroglu_finds_chinchilla_near_its_optimum() -> None:
    found = compute_optimal(5.76e23, BESIROGLU)
    assert found.n_parameters == pytest.approx(70e9, rel=0.05)
    assert found.n_tokens == pytest.approx(1.4e12, rel=0.06)


def test_hoffmann_finds_a_smaller_model_and_rounding_makes_it_smaller_still() -> None:
    """The paper prints 40 B for this budget; its exponents are 0.3392 and 0.2849 in its source."""
    unrounded = replace(HOFFMANN, parameter_exponent=0.3392, token_exponent=0.2849)
    assert compute_optimal(5.76e23, unrounded).n_parameters == pytest.approx(40e9, rel=0.01)
    assert compute_optimal(5.76e23, HOFFMANN).n_parameters == pytest.approx(32e9, rel=0.01)


@given(budgets, fits, st.floats(0.5, 2).filter(lambda times: abs(times - 1) > 1e-3))
def test_the_optimum_spends_the_budget_and_beats_its_neighbours(
    flops: float, fit: ScalingFit, times: float
) -> None:
    found = compute_optimal(flops, fit)
    assert found.training_flops == pytest.approx(flops, rel=1e-12)
    assert found.tokens_per_parameter == pytest.approx(found.n_tokens / found.n_parameters)
    neighbour = training_plan(
        "a neighbour", fit, n_parameters=times * found.n_parameters, n_tokens=found.n_tokens / times
    )
    assert neighbour.training_flops == pytest.approx(flops, rel=1e-12)
    assert found.loss < neighbour.loss


@given(budgets, fits)
def test_the_optimum_is_stationary(flops: float, fit: ScalingFit) -> None:
    found = compute_optimal(flops, fit)
    size = fit.parameter_coefficient / found.n_parameters**fit.parameter_exponent
    data = fit.token_coefficient / found.n_tokens**fit.token_exponent
    assert fit.parameter_exponent * size == pytest.approx(fit.token_exponent * data, rel=1e-9)


@given(budgets, fits, st.floats(1.01, 100))
def test_more_work_has_a_larger_model_more_tokens_and_less_loss(
    flops: float, fit: ScalingFit, times: float
) -> None:
    base, more = compute_optimal(flops, fit), compute_optimal(times * flops, fit)
    assert more.n_parameters > base.n_parameters
    assert more.n_tokens > base.n_tokens
    assert fit.irreducible_loss < more.loss < base.loss


@given(budgets, fits)
def test_the_rule_is_twenty_tokens_a_parameter_and_no_better_than_the_optimum(
    flops: float, fit: ScalingFit
) -> None:
    rule = twenty_tokens_a_parameter(flops, fit)
    assert rule.tokens_per_parameter == pytest.approx(20)
    assert rule.training_flops == pytest.approx(flops)
    assert rule.loss >= compute_optimal(flops, fit).loss * (1 - 1e-12)
    assert rule.rule == "20 tokens a parameter"


def test_the_rule_gives_chinchilla_its_tokens() -> None:
    rule = twenty_tokens_a_parameter(6 * 70e9 * 1.4e12, BESIROGLU)
    assert (rule.n_parameters, rule.n_tokens) == pytest.approx((70e9, 1.4e12))


def test_a_plan_says_what_chose_it_and_by_which_fit() -> None:
    found = compute_optimal(1e21, BESIROGLU)
    assert (found.rule, found.fit) == ("compute-optimal (besiroglu-2024)", "besiroglu-2024")


@pytest.mark.parametrize("amount", [0.0, -1.0, nan, inf])
def test_an_amount_that_is_none_is_refused(amount: float) -> None:
    with pytest.raises(PeakwardError, match="expected training_flops above 0, got"):
        compute_optimal(amount, HOFFMANN)
    with pytest.raises(PeakwardError, match="expected training_flops above 0, got"):
        twenty_tokens_a_parameter(amount, HOFFMANN)
    with pytest.raises(PeakwardError, match="expected n_parameters above 0, got"):
        predicted_loss(HOFFMANN, n_parameters=amount, n_tokens=1.0)
    with pytest.raises(PeakwardError, match="expected n_tokens above 0, got"):
        training_plan("x", HOFFMANN, n_parameters=1.0, n_tokens=amount)
