"""A model's life: training and then serving, of the compute-optimal size and of smaller ones."""

import msgspec

from peakward.models.scaling_fits import SCALING_FITS
from peakward.prediction.scaling_laws.lifetime import SERVING_FLOPS, lifetime_optimal
from peakward.prediction.scaling_laws.money import bill, lifetime_bill, relative_price
from peakward.prediction.scaling_laws.overtraining import (
    break_even_tokens,
    least_parameters,
    trained_to,
)
from peakward.prediction.scaling_laws.training import compute_optimal
from peakward.records.scaling import LifetimePlan, ScalingFit, TrainingPlan
from peakward.studies.scaling.budgets import TRAINING_MFU, devices, tariff

BUDGET_FLOPS = 1e23
"""Its compute-optimal model sets the loss that every other must reach: 14 to 30 billion parameters."""
SERVED_TOKENS = tuple(10.0**exponent for exponent in range(9, 14))
SERVING_MFUS = (0.4, 0.1)
"""Assumed: the training's own, and a quarter of it, for decoding is bound by memory."""
SIZES = (1.0, 0.75, 0.5, 0.25)
"""Of the compute-optimal model's parameters."""


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """The cheapest model of a loss over its life, beside the compute-optimal one of that loss."""

    fit: ScalingFit
    serving_mfu: float
    plan: LifetimePlan
    device_hours: float
    """On the first of DEVICES."""
    optimum: TrainingPlan
    optimum_device_hours: float

    @property
    def saved(self) -> float:
        """Share of the compute-optimal model's device-hours."""
        return 1 - self.device_hours / self.optimum_device_hours


class Overtrained(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the compute-optimal size, trained to the same loss."""

    fit: ScalingFit
    size: float
    n_parameters: float
    plan: TrainingPlan | None
    """None where no data bring so few parameters to the loss."""
    optimum: TrainingPlan
    break_even_tokens: tuple[float | None, ...]
    """For each of SERVING_MFUS; None for the optimum itself and where there is no plan."""


def lives() -> tuple[Life, ...]:
    """Every fit, MFU of serving and number of served tokens."""
    return tuple(
        _life(fit, mfu, served)
        for fit in SCALING_FITS
        for mfu in SERVING_MFUS
        for served in SERVED_TOKENS
    )


def overtrained() -> tuple[Overtrained, ...]:
    """Every fit and size."""
    return tuple(_overtrained(fit, size) for fit in SCALING_FITS for size in SIZES)


def smallest(fit: ScalingFit) -> float:
    """Parameters below which nothing reaches the loss of the compute-optimal model."""
    return least_parameters(compute_optimal(BUDGET_FLOPS, fit).loss, fit)


def _life(fit: ScalingFit, serving_mfu: float, served_tokens: float) -> Life:
    on = devices()[0]
    training, serving = tariff(on, TRAINING_MFU), tariff(on, serving_mfu)
    optimum = compute_optimal(BUDGET_FLOPS, fit)
    plan = lifetime_optimal(optimum.loss, served_tokens, fit, relative_price=_price(serving_mfu))
    served_by_optimum = bill(SERVING_FLOPS * optimum.n_parameters * served_tokens, serving)
    trained = bill(optimum.training_flops, training)
    return Life(
        fit=fit,
        serving_mfu=serving_mfu,
        plan=plan,
        device_hours=lifetime_bill(plan, training=training, serving=serving).device_hours,
        optimum=optimum,
        optimum_device_hours=trained.device_hours + served_by_optimum.device_hours,
    )


def _price(serving_mfu: float) -> float:
    """Of a FLOP of serving over one of training."""
    on = devices()[0]
    return relative_price(training=tariff(on, TRAINING_MFU), serving=tariff(on, serving_mfu))


def _overtrained(fit: ScalingFit, size: float) -> Overtrained:
    optimum = compute_optimal(BUDGET_FLOPS, fit)
    n_parameters = size * optimum.n_parameters
    reached = n_parameters > least_parameters(optimum.loss, fit)
    plan = trained_to(optimum.loss, n_parameters, fit) if reached else None
    return Overtrained(
        fit=fit,
        size=size,
        n_parameters=n_parameters,
        plan=plan,
        optimum=optimum,
        break_even_tokens=tuple(
            None
            if plan is None or size == 1
            else break_even_tokens(plan, optimum, relative_price=_price(mfu))
            for mfu in SERVING_MFUS
        ),
    )
