"""The closed-form optimum: against known models, against its neighbours, against the rule."""

import re
from math import inf, nan

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.models.scaling_fits import SCALING_FITS, scaling_fit
from peakward.prediction.scaling_laws import (
    SERVING_FLOPS,
    bill,
    break_even_tokens,
    compute_optimal,
    least_parameters,
    lifetime_bill,
    lifetime_optimal,
    predicted_loss,
    refuse_if_negative,
    refuse_unless_positive,
    relative_price,
    trained_to,
    training_plan,
    twenty_tokens_a_parameter,
)
from peakward.records.errors import PeakwardError
from peakward.records.plan import Bill, ScalingFit, Tariff

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


# The cheapest model over its life: against the paper, the closed form, and its neighbours.

SARDANA = msgspec.structs.replace(
    HOFFMANN, name="sardana-2023", parameter_exponent=0.336, token_exponent=0.283
)
"""The coefficients of Sardana et al.: Hoffmann's, with the exponents to three digits."""
lifetime_budgets = st.floats(18, 26).map(lambda exponent: 10.0**exponent)
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


@given(lifetime_budgets, fits)
def test_a_model_that_is_never_served_is_the_compute_optimal_one(
    flops: float, fit: ScalingFit
) -> None:
    best = compute_optimal(flops, fit)
    found = lifetime_optimal(best.loss, 0.0, fit)
    assert found.training.n_parameters == pytest.approx(best.n_parameters, rel=1e-6)
    assert found.training.n_tokens == pytest.approx(best.n_tokens, rel=1e-6)
    assert found.lifetime_flops == found.training.training_flops


@given(lifetime_budgets, demands, fits, st.floats(0.01, 100), st.floats(0.5, 2))
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


@given(lifetime_budgets, demands, fits, st.floats(1.1, 100))
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


@given(lifetime_budgets, demands, fits, st.floats(0.01, 100))
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


# Smaller models of one loss: by hand, and against the loss that they were trained to.

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


# Device-hours and prices, by hand, and that the weighed plan is the cheapest.

FIT = scaling_fit("besiroglu-2024")
TRAINING = Tariff(peak_flops_per_s=1e15, mfu=0.4, price_per_device_hour=2.0)
SERVING = Tariff(peak_flops_per_s=1e15, mfu=0.05, price_per_device_hour=1.5)


def test_a_bill_by_hand() -> None:
    # 1e15 · 0.4 · 3600 s are 1.44e18 FLOPs an hour.
    assert bill(1.44e21, TRAINING) == Bill(flops=1.44e21, device_hours=1000.0, price=2000.0)
    assert bill(0.0, TRAINING).price == 0.0
    free = replace(TRAINING, price_per_device_hour=0.0)
    assert (bill(1.44e21, free).device_hours, bill(1.44e21, free).price) == (1000.0, 0.0)


def test_a_life_is_paid_for_training_and_for_serving() -> None:
    plan = lifetime_optimal(2.0, 1e13, FIT)
    paid = lifetime_bill(plan, training=TRAINING, serving=SERVING)
    parts = bill(plan.training.training_flops, TRAINING), bill(plan.serving_flops, SERVING)
    assert paid.price == parts[0].price + parts[1].price
    assert paid.device_hours == parts[0].device_hours + parts[1].device_hours
    assert paid.flops == plan.lifetime_flops


def test_a_flop_at_an_eighth_of_the_mfu_costs_eight_times_as_much() -> None:
    same_price = replace(SERVING, price_per_device_hour=2.0)
    assert relative_price(training=TRAINING, serving=same_price) == pytest.approx(8)
    assert relative_price(training=TRAINING, serving=SERVING) == pytest.approx(6)


@given(st.floats(0.1, 10))
def test_the_plan_weighed_by_price_has_the_lowest_bill(weight: float) -> None:
    price = relative_price(training=TRAINING, serving=SERVING)

    def paid(relative: float) -> float:
        plan = lifetime_optimal(2.0, 1e13, FIT, relative_price=relative)
        return lifetime_bill(plan, training=TRAINING, serving=SERVING).price

    assert paid(price) <= paid(weight * price) * (1 + 1e-12)


def test_weighing_by_price_saves_money_over_weighing_by_flops() -> None:
    price = relative_price(training=TRAINING, serving=SERVING)
    by_price = lifetime_optimal(2.0, 1e13, FIT, relative_price=price)
    by_flops = lifetime_optimal(2.0, 1e13, FIT)
    bills = [
        lifetime_bill(plan, training=TRAINING, serving=SERVING) for plan in (by_price, by_flops)
    ]
    assert bills[0].price < 0.95 * bills[1].price
    assert by_price.lifetime_flops > by_flops.lifetime_flops


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mfu": 0.0}, "expected an mfu above 0 and of at most 1, got 0.0"),
        ({"mfu": 1.01}, "expected an mfu above 0 and of at most 1, got 1.01"),
        ({"mfu": nan}, "expected an mfu above 0 and of at most 1, got nan"),
        ({"price_per_device_hour": -0.1}, "expected price_per_device_hour of at least 0, got -0.1"),
        ({"price_per_device_hour": inf}, "expected price_per_device_hour of at least 0, got inf"),
        ({"peak_flops_per_s": 0.0}, "expected peak_flops_per_s above 0, got 0.0"),
    ],
)
def test_a_tariff_that_cannot_be_is_refused(change: dict[str, float], message: str) -> None:
    wrong = replace(TRAINING, **change)
    for refused in (
        lambda: bill(1.0, wrong),
        lambda: relative_price(training=wrong, serving=SERVING),
        lambda: relative_price(training=SERVING, serving=wrong),
    ):
        with pytest.raises(PeakwardError) as found:
            refused()
        assert message in str(found.value)


def test_what_is_free_has_no_relative_price_and_negative_work_no_bill() -> None:
    free = replace(TRAINING, price_per_device_hour=0.0)
    with pytest.raises(PeakwardError, match="expected price_per_device_hour of training above 0"):
        relative_price(training=free, serving=SERVING)
    with pytest.raises(PeakwardError, match=r"expected flops of at least 0, got -1\.0"):
        bill(-1.0, TRAINING)
    assert bill(1e20, replace(TRAINING, mfu=1.0)).price > 0


# The bounds themselves.


def test_positive_amounts_pass_and_nothing_is_no_negative_amount() -> None:
    refuse_unless_positive(1e-300, "x")
    refuse_if_negative(0.0, "x")


@pytest.mark.parametrize("amount", [0.0, -1.0, nan, inf])
def test_what_is_not_positive_is_refused(amount: float) -> None:
    with pytest.raises(PeakwardError, match=r"expected x above 0, got .*: give a finite number"):
        refuse_unless_positive(amount, "x")


@pytest.mark.parametrize("amount", [-1e-300, nan, inf])
def test_what_is_negative_is_refused(amount: float) -> None:
    with pytest.raises(PeakwardError, match=r"expected x of at least 0, got .*: give a finite"):
        refuse_if_negative(amount, "x")
