"""One kind of device as a plan sees it, and the figures that follow from a step's time on it."""

from collections.abc import Callable
from typing import NamedTuple, Self, TypeVar

from peakward.hardware.devices import least_memory_bytes
from peakward.prediction.time.device_model import DeviceModel, device_model
from peakward.records.calibration import Calibration, Rates
from peakward.records.device import Device
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Interval
from peakward.records.plan import Absent, DeviceGroup

# A figure, or the reason why there is none.

T = TypeVar("T")


class Attempts:
    """The refusals so far, in order."""

    def __init__(self) -> None:
        self._absent: list[Absent] = []

    @property
    def absent(self) -> tuple[Absent, ...]:
        return tuple(self._absent)

    def of(self, figure: str, compute: Callable[[], T]) -> T | None:
        """The figure; where it is refused None, and the refusal is kept."""
        try:
            return compute()
        except PeakwardError as refusal:
            self.without(figure, str(refusal))
            return None

    def without(self, figure: str, reason: str) -> None:
        """Keep the reason why there is no such figure."""
        self._absent.append(Absent(figure=figure, reason=reason))


# One kind of device as a plan sees it: what it can do, what it offers, what it costs.


class Site(NamedTuple):
    """Where a case is planned to run."""

    device: Device
    calibration: Calibration | None
    model: DeviceModel | None
    """None where times cannot be predicted, for the reason beside it."""
    why_no_model: str
    group: DeviceGroup | None
    price_per_gpu_hour: float | None

    def issued_by(self, launches: Rates) -> Self:
        """The same under a host whose calls take so long now; as it is where none was timed."""
        return self if self.model is None else self._replace(model=self.model.issued_by(launches))

    def limit_bytes(self, case_limit_bytes: int | None) -> int:
        """Bytes that one GPU offers, or that the case allows itself."""
        offered = least_memory_bytes(self.device)
        return offered if case_limit_bytes is None else min(offered, case_limit_bytes)


def site(
    device: Device,
    *,
    calibration: Calibration | None = None,
    host_is_known: bool = True,
    group: DeviceGroup | None = None,
    price_per_gpu_hour: float | None = None,
) -> Site:
    """A device by its calibration where there is one, else by its datasheet."""
    try:
        model, why = device_model(calibration, device, host_is_known=host_is_known), ""
    except PeakwardError as refusal:
        model, why = None, str(refusal)
    return Site(device, calibration, model, why, group, price_per_gpu_hour)


# Figures that follow from a step's time: rates, device time, money and energy, each with its interval.

SECONDS_PER_HOUR = 3600


def over(step_s: Interval | None, amount: float) -> Interval | None:
    """A rate: the amount over each of the times."""
    if step_s is None:
        return None
    return Interval(
        estimate=amount / step_s.estimate,
        low=amount / step_s.high,
        high=amount / step_s.low,
        level=step_s.level,
    )


def times(step_s: Interval | None, factor: float) -> Interval | None:
    """Each of the times so many times."""
    if step_s is None:
        return None
    return Interval(
        estimate=step_s.estimate * factor,
        low=step_s.low * factor,
        high=step_s.high * factor,
        level=step_s.level,
    )


def gpu_hours(tokens: float) -> float:
    """GPU hours of a million tokens, per second of a step of so many. Every GPU of a group has its own
    tokens, so that their number does not matter."""
    return 1e6 / tokens / SECONDS_PER_HOUR


def cost(tokens: float, step_s: Interval | None, on: Site) -> Interval | None:
    """The cost of a million tokens; None without a price."""
    if on.price_per_gpu_hour is None:
        return None
    return times(step_s, on.price_per_gpu_hour * gpu_hours(tokens))


def energy(tokens: float, step_s: Interval | None, on: Site, attempts: Attempts) -> Interval | None:
    """Joules of a token, if the board drew all that it may all the time."""
    if on.device.power_w is None:
        attempts.without("energy", f"no power limit is catalogued for {on.device.name}")
        return None
    return times(step_s, on.device.power_w.value / tokens)
