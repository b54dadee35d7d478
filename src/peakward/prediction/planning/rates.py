"""Figures that follow from a step's time: rates, device time, money and energy, each with its interval."""

from peakward.prediction.planning.attempt import Attempts
from peakward.prediction.planning.site import Site
from peakward.records.measurement import Interval

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
