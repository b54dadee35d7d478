"""Device time and price of arithmetic, from FLOPs, MFU and the price of a device-hour."""

from peakward.prediction.scaling_laws.validate import refuse_if_negative, refuse_unless_positive
from peakward.records.errors import PeakwardError
from peakward.records.plan import Bill, LifetimePlan, Tariff

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
