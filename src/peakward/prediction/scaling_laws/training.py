"""Model size and tokens for a training budget.

Hoffmann et al., "Training Compute-Optimal Large Language Models" (2022), approach 3: the loss
L(N, D) = E + A/N^α + B/D^β (equation 2) is minimised under a budget of C = 6·N·D FLOPs, in closed
form (equation 4). N counts parameters; 6 of them a token leave attention's products out.
"""

from peakward.prediction.scaling_laws.validate import refuse_unless_positive
from peakward.records.plan import ScalingFit, TrainingPlan

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
