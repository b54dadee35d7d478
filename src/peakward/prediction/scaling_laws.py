"""Scaling laws: model size and tokens for a training budget, what serving changes, and what it costs."""

import math

from peakward.records.errors import PeakwardError
from peakward.records.plan import Bill, LifetimePlan, ScalingFit, Tariff, TrainingPlan

# Model size and tokens for a training budget.
#
# Hoffmann et al., "Training Compute-Optimal Large Language Models" (2022), approach 3: the loss
# L(N, D) = E + A/N^α + B/D^β (equation 2) is minimised under a budget of C = 6·N·D FLOPs, in closed
# form (equation 4). N counts parameters; 6 of them a token leave attention's products out.

TRAINING_FLOPS = 6
"""FLOPs of a parameter and a token: 2 forward, 4 backward."""
RULE_TOKENS = 20
"""Tokens a parameter of the rule of thumb: Chinchilla's own, 1.4e12 over 70e9."""


def predicted_loss(fit: ScalingFit, *, n_parameters: float, n_tokens: float) -> float:
    """L(N, D), in nats a token.

    Raises:
        PeakwardError: a size that is not a positive number.
    """
    refuse_unless_positive(n_parameters, "n_parameters")
    refuse_unless_positive(n_tokens, "n_tokens")
    of_size: float = fit.parameter_coefficient / n_parameters**fit.parameter_exponent
    of_data: float = fit.token_coefficient / n_tokens**fit.token_exponent
    return fit.irreducible_loss + of_size + of_data


def compute_optimal(training_flops: float, fit: ScalingFit) -> TrainingPlan:
    """The size of least loss for a budget: N = G·(C/6)^a, D = (C/6)^b / G.

    With G = (αA / (βB))^(1/(α+β)), a = β/(α+β), b = α/(α+β): equation 4.

    Raises:
        PeakwardError: a budget that is not a positive number.
    """
    refuse_unless_positive(training_flops, "training_flops")
    alpha, beta = fit.parameter_exponent, fit.token_exponent
    ratio = alpha * fit.parameter_coefficient / (beta * fit.token_coefficient)
    scale = ratio ** (1 / (alpha + beta))
    products = training_flops / TRAINING_FLOPS
    n_parameters = scale * products ** (beta / (alpha + beta))
    return training_plan(
        f"compute-optimal ({fit.name})",
        fit,
        n_parameters=n_parameters,
        n_tokens=products / n_parameters,
    )


def twenty_tokens_a_parameter(training_flops: float, fit: ScalingFit) -> TrainingPlan:
    """The rule of thumb D = 20·N under the same budget; the fit gives its loss alone.

    It is no optimum of any fit: Hoffmann's approaches 1 and 2 and Besiroglu's fit lie near it over
    the budgets that they saw.

    Raises:
        PeakwardError: a budget that is not a positive number.
    """
    refuse_unless_positive(training_flops, "training_flops")
    n_parameters = (training_flops / (TRAINING_FLOPS * RULE_TOKENS)) ** 0.5
    return training_plan(
        "20 tokens a parameter",
        fit,
        n_parameters=n_parameters,
        n_tokens=RULE_TOKENS * n_parameters,
    )


def training_plan(
    rule: str, fit: ScalingFit, *, n_parameters: float, n_tokens: float
) -> TrainingPlan:
    """The plan of a size that `rule` chose, with its FLOPs and the loss that the fit predicts.

    Raises:
        PeakwardError: a size that is not a positive number.
    """
    return TrainingPlan(
        rule=rule,
        n_parameters=n_parameters,
        n_tokens=n_tokens,
        tokens_per_parameter=n_tokens / n_parameters,
        training_flops=TRAINING_FLOPS * n_parameters * n_tokens,
        fit=fit.name,
        loss=predicted_loss(fit, n_parameters=n_parameters, n_tokens=n_tokens),
    )


# The model size that reaches a loss most cheaply, its serving included.
#
# Sardana, Portes, Doubov, Frankle, "Beyond Chinchilla-Optimal: Accounting for Inference in Language
# Model Scaling Laws" (2023): minimise 6·N·D + 2·N·D_inf over all (N, D) with L(N, D) = ℓ. A FLOP of
# serving may be weighed by its price over that of training (their section on real-world cost), for
# decoding reaches a far lower MFU.
#
# With v the share of the data's term in the reducible loss, B/D^β = v·(ℓ - E) and A/N^α = (1 - v)·(ℓ - E).
# The cost is stationary where
#
#     α·(1 - v) = β·v·(1 + p·D_inf / (3·D(v))).
#
# The left falls from α to 0 and the right rises from 0, for D falls as v rises: there is one such v, it is
# the minimum, and bisection cannot miss it.

SERVING_FLOPS = 2
"""FLOPs of a parameter and a served token."""


def lifetime_optimal(
    target_loss: float, served_tokens: float, fit: ScalingFit, *, relative_price: float = 1.0
) -> LifetimePlan:
    """The size that reaches `target_loss` with the least weighed FLOPs of training and serving.

    Args:
        target_loss: ℓ, in nats a token.
        served_tokens: D_inf; 0 gives the compute-optimal model of that loss.
        relative_price: p, of a FLOP of serving over one of training (`relative_price`).

    Raises:
        PeakwardError: a loss that the fit cannot reach, or reaches with one parameter and one
            token; negative tokens; a relative price that is not positive.
    """
    _refuse_unreachable(target_loss, fit)
    refuse_if_negative(served_tokens, "served_tokens")
    refuse_unless_positive(relative_price, "relative_price")
    reducible = target_loss - fit.irreducible_loss
    share = _stationary_share(fit, reducible, relative_price * served_tokens)
    term = (1 - share) * reducible
    n_parameters = (fit.parameter_coefficient / term) ** (1 / fit.parameter_exponent)
    training = training_plan(
        f"lifetime-optimal ({fit.name})",
        fit,
        n_parameters=n_parameters,
        n_tokens=_n_tokens(fit, share * reducible),
    )
    serving_flops = SERVING_FLOPS * n_parameters * served_tokens
    return LifetimePlan(
        training=training,
        served_tokens=served_tokens,
        serving_flops=serving_flops,
        lifetime_flops=training.training_flops + serving_flops,
        relative_price=relative_price,
    )


def _refuse_unreachable(target_loss: float, fit: ScalingFit) -> None:
    highest = fit.irreducible_loss + fit.parameter_coefficient + fit.token_coefficient
    if not fit.irreducible_loss < target_loss < highest:
        raise PeakwardError(
            f"expected a target_loss above {fit.irreducible_loss} and below {highest:.0f} for the "
            f"fit {fit.name}, got {target_loss}: the lower is what no model goes under"
        )


def _stationary_share(fit: ScalingFit, reducible: float, weighed_tokens: float) -> float:
    """v, to the last bit of a double: bisection until no number lies between its bounds."""
    alpha, beta = fit.parameter_exponent, fit.token_exponent
    # A served token against a trained one: 2·N over 6·N.
    weighed = weighed_tokens * SERVING_FLOPS / TRAINING_FLOPS
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        served = 1 + weighed / _n_tokens(fit, middle * reducible)
        if alpha * (1 - middle) > beta * middle * served:
            low = middle
        else:
            high = middle
    return middle


def _n_tokens(fit: ScalingFit, term: float) -> float:
    """Tokens whose term of the loss is `term`."""
    n_tokens: float = (fit.token_coefficient / term) ** (1 / fit.token_exponent)
    return n_tokens


# A model smaller than the compute-optimal one, trained on until it is as good.
#
# L(N, D) = ℓ solved for D: more tokens, more training FLOPs, but every served token costs
# 2·N, so that from some number of served tokens on it has been the cheaper of the two.


def least_parameters(target_loss: float, fit: ScalingFit) -> float:
    """The size that reaches the loss with infinitely many tokens: (A / (ℓ - E))^(1/α).

    Raises:
        PeakwardError: a loss that the fit cannot reach at any size.
    """
    if target_loss <= fit.irreducible_loss:
        raise PeakwardError(
            f"expected a target_loss above {fit.irreducible_loss} for the fit {fit.name}, got "
            f"{target_loss}: no model goes under it"
        )
    term = target_loss - fit.irreducible_loss
    n_parameters: float = (fit.parameter_coefficient / term) ** (1 / fit.parameter_exponent)
    return n_parameters


def trained_to(target_loss: float, n_parameters: float, fit: ScalingFit) -> TrainingPlan:
    """The tokens with which a size reaches a loss: D = (B / (ℓ - E - A/N^α))^(1/β).

    Raises:
        PeakwardError: a size that no data bring to the loss, or one that is no positive number.
    """
    refuse_unless_positive(n_parameters, "n_parameters")
    least = least_parameters(target_loss, fit)
    if n_parameters <= least:
        raise PeakwardError(
            f"expected more than {least:.3g} parameters for a loss of {target_loss} by the fit "
            f"{fit.name}, got {n_parameters:.3g}: no data bring so few there"
        )
    of_size = fit.parameter_coefficient / n_parameters**fit.parameter_exponent
    term = target_loss - fit.irreducible_loss - of_size
    return training_plan(
        f"trained to a loss of {target_loss:.4g}",
        fit,
        n_parameters=n_parameters,
        n_tokens=(fit.token_coefficient / term) ** (1 / fit.token_exponent),
    )


def break_even_tokens(
    smaller: TrainingPlan, larger: TrainingPlan, *, relative_price: float
) -> float:
    """Served tokens from which on the smaller model has cost less, training included.

    Where 6·N₁·D₁ + p·2·N₁·S = 6·N₀·D₀ + p·2·N₀·S. Below 0 where the smaller costs less to train too.

    Args:
        relative_price: p, of a FLOP of serving over one of training.

    Raises:
        PeakwardError: the first is no smaller, or a relative price that is not positive.
    """
    refuse_unless_positive(relative_price, "relative_price")
    if smaller.n_parameters >= larger.n_parameters:
        raise PeakwardError(
            f"expected a model smaller than {larger.n_parameters:.3g} parameters, got "
            f"{smaller.n_parameters:.3g}: only a smaller one is served for less"
        )
    saved = SERVING_FLOPS * (larger.n_parameters - smaller.n_parameters) * relative_price
    return (smaller.training_flops - larger.training_flops) / saved


# Device time and price of arithmetic, from FLOPs, MFU and the price of a device-hour.

SECONDS_PER_HOUR = 3600


def bill(flops: float, tariff: Tariff) -> Bill:
    """Device-hours and price of that many model FLOPs, however many devices share them.

    Raises:
        PeakwardError: negative FLOPs or price, a peak that is not positive, an MFU outside (0, 1].
    """
    refuse_if_negative(flops, "flops")
    _validate(tariff)
    device_hours = flops / (tariff.peak_flops_per_s * tariff.mfu) / SECONDS_PER_HOUR
    return Bill(
        flops=flops, device_hours=device_hours, price=device_hours * tariff.price_per_device_hour
    )


def lifetime_bill(plan: LifetimePlan, *, training: Tariff, serving: Tariff) -> Bill:
    """Training and serving together; both tariffs are in one currency.

    Raises:
        PeakwardError: as `bill`.
    """
    parts = (bill(plan.training.training_flops, training), bill(plan.serving_flops, serving))
    return Bill(
        flops=plan.lifetime_flops,
        device_hours=sum(part.device_hours for part in parts),
        price=sum(part.price for part in parts),
    )


def relative_price(*, training: Tariff, serving: Tariff) -> float:
    """Price of a FLOP of serving over one of training: what `lifetime_optimal` weighs by, so that
    its plan has the least `lifetime_bill`.

    Raises:
        PeakwardError: as `bill`; or either is free, so that there is no ratio to weigh by.
    """
    for tariff, name in ((training, "training"), (serving, "serving")):
        _validate(tariff)
        refuse_unless_positive(tariff.price_per_device_hour, f"price_per_device_hour of {name}")
    return _price_per_flop(serving) / _price_per_flop(training)


def _price_per_flop(tariff: Tariff) -> float:
    """Up to the seconds of an hour."""
    return tariff.price_per_device_hour / (tariff.peak_flops_per_s * tariff.mfu)


def _validate(tariff: Tariff) -> None:
    refuse_unless_positive(tariff.peak_flops_per_s, "peak_flops_per_s")
    refuse_if_negative(tariff.price_per_device_hour, "price_per_device_hour")
    if not 0 < tariff.mfu <= 1:
        raise PeakwardError(
            f"expected an mfu above 0 and of at most 1, got {tariff.mfu}: "
            "it is a share of the peak, 0.4 for 40%"
        )


# Bounds of the amounts that a scaling law is asked about.


def refuse_unless_positive(value: float, name: str) -> None:
    """Refuses sizes, budgets and rates that are not positive.

    Raises:
        PeakwardError: zero, negative, infinite or not a number.
    """
    if not 0 < value < math.inf:
        raise PeakwardError(f"expected {name} above 0, got {value}: give a finite number above 0")


def refuse_if_negative(value: float, name: str) -> None:
    """Refuses negative prices, and other figures that may be zero.

    Raises:
        PeakwardError: negative, infinite or not a number.
    """
    if not 0 <= value < math.inf:
        raise PeakwardError(
            f"expected {name} of at least 0, got {value}: give a finite number, 0 or above"
        )
