"""The model size that reaches a loss most cheaply, its serving included.

Sardana, Portes, Doubov, Frankle, "Beyond Chinchilla-Optimal: Accounting for Inference in Language
Model Scaling Laws" (2023): minimise 6·N·D + 2·N·D_inf over all (N, D) with L(N, D) = ℓ. A FLOP of
serving may be weighed by its price over that of training (their section on real-world cost), for
decoding reaches a far lower MFU.

With v the share of the data's term in the reducible loss, B/D^β = v·(ℓ - E) and
A/N^α = (1 - v)·(ℓ - E). The cost is stationary where

    α·(1 - v) = β·v·(1 + p·D_inf / (3·D(v))).

The left falls from α to 0 and the right rises from 0, for D falls as v rises: there is one such v,
it is the minimum, and bisection cannot miss it.
"""

from peakward.prediction.scaling_laws.training import TRAINING_FLOPS, training_plan
from peakward.prediction.scaling_laws.validate import refuse_if_negative, refuse_unless_positive
from peakward.records.errors import PeakwardError
from peakward.records.plan import LifetimePlan, ScalingFit

SERVING_FLOPS = 2
"""FLOPs of a parameter and a served token."""


def lifetime_optimal(
    target_loss: float, served_tokens: float, fit: ScalingFit, *, relative_price: float = 1.0
) -> LifetimePlan:
    """The size that reaches `target_loss` with the least weighed FLOPs of training and serving.

    Args:
        target_loss: ℓ, in nats a token.
        served_tokens: D_inf; 0 gives the compute-optimal model of that loss.
        relative_price: p, of a FLOP of serving over one of training (`money.relative_price`).

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
