"""A model smaller than the compute-optimal one, trained on until it is as good.

L(N, D) = ℓ (`training`) solved for D: more tokens, more training FLOPs, but every served token costs
2·N, so that from some number of served tokens on it has been the cheaper of the two.
"""

from peakward.prediction.scaling_laws.lifetime import SERVING_FLOPS
from peakward.prediction.scaling_laws.training import training_plan
from peakward.prediction.scaling_laws.validate import refuse_unless_positive
from peakward.records.errors import PeakwardError
from peakward.records.plan import ScalingFit, TrainingPlan


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
