"""What each rule makes of a training budget, and how long devices take for it."""

from collections.abc import Callable

import msgspec

from peakward.hardware.devices import device
from peakward.models.scaling_fits import SCALING_FITS
from peakward.prediction.scaling_laws.money import bill
from peakward.prediction.scaling_laws.training import compute_optimal, twenty_tokens_a_parameter
from peakward.records.device import Device
from peakward.records.scaling import ScalingFit, Tariff, TrainingPlan

CHINCHILLA_FLOPS = 5.76e23
"""Gopher's budget, with which Chinchilla was trained: Hoffmann et al. (2022)."""
BUDGETS_FLOPS = tuple(sorted((*(10.0**exponent for exponent in range(18, 26)), CHINCHILLA_FLOPS)))
DEVICES = ("h100-sxm-80", "a100-sxm-80")
COMPUTE_TYPE = "bf16"
TRAINING_MFU = 0.4
"""Assumed, and said beside every device-hour."""
RULES: tuple[tuple[Callable[[float, ScalingFit], TrainingPlan], ScalingFit], ...] = (
    *((compute_optimal, fit) for fit in SCALING_FITS),
    (twenty_tokens_a_parameter, SCALING_FITS[0]),
)
"""Each fit's optimum; then the rule of thumb, whose loss the first fit gives."""


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """A budget as one rule splits it."""

    budget_flops: float
    plan: TrainingPlan
    is_optimum: bool
    """Of its fit; a rule of thumb is none."""
    device_hours: tuple[float, ...]
    """On each of DEVICES."""


def fits() -> dict[str, ScalingFit]:
    """By name."""
    return {each.name: each for each in SCALING_FITS}


def devices() -> tuple[Device, ...]:
    """Those of DEVICES."""
    return tuple(device(key) for key in DEVICES)


def tariff(on: Device, mfu: float) -> Tariff:
    """A price of 1 an hour, so that a price is a number of hours."""
    peak = on.peak_flops_per_s[COMPUTE_TYPE].value
    return Tariff(peak_flops_per_s=peak, mfu=mfu, price_per_device_hour=1.0)


def allocations() -> tuple[Allocation, ...]:
    """Every budget by every rule."""
    return tuple(
        Allocation(
            budget_flops=budget,
            plan=rule(budget, fit),
            is_optimum=rule is compute_optimal,
            device_hours=tuple(
                bill(budget, tariff(each, TRAINING_MFU)).device_hours for each in devices()
            ),
        )
        for budget in BUDGETS_FLOPS
        for rule, fit in RULES
    )
