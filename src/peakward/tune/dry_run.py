"""Lists what an investigation would do and how long each part should take, without running it."""

from peakward.hardware import devices
from peakward.levers.catalogue import pull
from peakward.records.calibration import Calibration
from peakward.records.measurement import Environment
from peakward.tune import costs
from peakward.tune.costs import HEADLINE, N_PROCESSES, ORACLE, Costs
from peakward.tune.forecasts import floor_of
from peakward.tune.investigation import Investigation
from peakward.tune.lever_stack import LeverStack

CALIBRATE_S = 15.0
"""The quick calibration with its process; it took some 10 s."""


def planned(
    asked: Investigation, environment: Environment, calibration: Calibration | None
) -> list[tuple[str, float]]:
    """Returns the parts with their seconds.

    As if every lever gained on top of those before it; what then gains alone is tried last, with
    what is left of the budget.
    """
    guess = _guessed(asked, environment, calibration)
    baseline_s = guess.start_s + guess.arm_s + HEADLINE.max_timed_s
    profile_s = guess.profile_s(asked.case)
    first = [] if calibration is not None else [("measure this machine's ceilings", CALIBRATE_S)]
    screenings, stack = _composed(asked, guess)
    checks_s = ORACLE * guess.check_s(asked.case) + sum(map(guess.check_s, stack.cases))
    turns_s = N_PROCESSES * (guess.start_s + sum(map(guess.turn_s, stack.cases)))
    return [
        *first,
        ("measure the baseline", baseline_s),
        ("profile the baseline", profile_s),
        *screenings,
        ("check the numbers of what gained", checks_s),
        ("confirm the composition and each of its levers", turns_s),
        ("measure the best composition", baseline_s),
        ("profile the best composition", profile_s),
    ]


def _guessed(
    asked: Investigation, environment: Environment, calibration: Calibration | None
) -> Costs:
    device = devices.match(environment.device_name, environment.device_memory_bytes)
    known = calibration is not None or device is not None
    found = floor_of(asked.case, environment, calibration) if known else None
    return costs.guessed(asked.case, None if found is None else found.floor_s)


def _composed(asked: Investigation, guess: Costs) -> tuple[list[tuple[str, float]], LeverStack]:
    """A screening of each lever on top of those before it, those that compile last as in the search, and
    the stack of all that save time."""
    steps, stack = [], LeverStack(base=asked.case)
    for lever in sorted(asked.applicable, key=lambda each: each.needs == "compiler"):
        cost_s = guess.screen_s(pull(lever, stack.top), on=stack.top)
        steps.append((f"screen {lever.name}", cost_s))
        stack = stack.in_place(lever) if lever.saves == "time" else stack
    return steps, stack
