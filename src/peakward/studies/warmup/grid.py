"""The grid of `warmup`, and each case beside its steady time."""

from typing import Literal

import msgspec

from peakward.records.case import ModelCase, Pass
from peakward.records.measurement import FirstStep, Measurement
from peakward.records.protocol import Protocol
from peakward.studies.cases import model_case
from peakward.studies.readings import Planned, Readings, median_s, ratio
from peakward.studies.setting import Setting

WARMUPS = (0, 1, 5)
N_TIMED = 10
Statistic = Literal["first", "mean", "median", "min", "sd"]
PASSES: tuple[Pass, ...] = ("forward", "forward_backward")


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One case after some warm-up steps, beside the steady time of the same case."""

    case: ModelCase
    warmup_steps: int
    measurement: Measurement | None
    steady: Measurement | None
    """The case after the most warm-up steps: its median is the steady time."""

    @property
    def steady_s(self) -> float | None:
        """Seconds; None where the steady case did not end `ok`."""
        return median_s(self.steady)

    def over_steady(self, statistic: Statistic) -> float | None:
        """The statistic as a multiple of the steady time: 1 is right, 0 is right for `sd`."""
        measurement = self.measurement
        if measurement is None or measurement.summary is None:
            return None
        summary = measurement.summary
        values = {
            "first": measurement.runs[0].steps_s[0],
            "mean": summary.mean_s,
            "median": summary.median_s.estimate,
            "min": summary.min_s,
            "sd": summary.sd_s,
        }
        return ratio(values[statistic], self.steady_s)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a first step took longer for."""

    name: str
    seconds: float | None
    """None where the record does not tell."""


class FirstStepCost(msgspec.Struct, frozen=True, kw_only=True):
    """A first step that was timed, the steady time, and what the profile of another first step tells."""

    cold: Measurement
    """Without warm-up: its first step is the first of a fresh process."""
    steady: Measurement | None
    """The same case after the most warm-up steps."""
    profile: FirstStep

    @property
    def excess_s(self) -> float | None:
        """What the timed first step took beyond a steady one; None where either was not timed."""
        steady_s = median_s(self.steady)
        if steady_s is None or self.cold.status != "ok" or not self.cold.runs:
            return None
        return self.cold.runs[0].steps_s[0] - steady_s

    @property
    def parts(self) -> tuple[Part, ...]:
        """Those that this kind of device has, told or not."""
        first, on_gpu = self.profile, self.cold.case.device == "cuda"
        only_gpu = (
            Part(name="module loading", seconds=first.module_load_s),
            Part(name="memory allocation", seconds=first.allocation_s),
            Part(name="cuBLAS's set-up and heuristics", seconds=first.products_s),
        )
        return (
            *(only_gpu if on_gpu else ()),
            Part(name="autotuning", seconds=first.autotune_s),
            Part(name="compilation", seconds=first.compile_s),
        )

    @property
    def other_s(self) -> float | None:
        """The excess less the parts: what none of them explains; below 0 where the parts, taken under a
        profiler, come to more than the excess."""
        told = (each.seconds for each in self.parts if each.seconds is not None)
        return None if self.excess_s is None else self.excess_s - sum(told)


def plan(setting: Setting) -> tuple[Planned, ...]:
    """Size × sequence × pass × warm-up steps."""
    return tuple((case, _protocol(setting, steps)) for case in _cases(setting) for steps in WARMUPS)


def _cases(setting: Setting) -> tuple[ModelCase, ...]:
    grid = setting.grid
    return tuple(
        model_case(shape, grid.batch_size, seq_len, pass_, setting.device)
        for shape in grid.models
        for seq_len in grid.seq_lens
        for pass_ in PASSES
    )


def _protocol(setting: Setting, warmup_steps: int) -> Protocol:
    return setting.protocol(
        warmup_steps=warmup_steps,
        min_steps=N_TIMED,
        max_steps=N_TIMED,
        phases=False,
        fresh_process=True,
    )


def explained(setting: Setting) -> tuple[Planned, ...]:
    """One case a size: its longest sequence, with the backward pass, without warm-up."""
    grid, protocol = setting.grid, _protocol(setting, 0)
    return tuple(
        (
            model_case(shape, grid.batch_size, max(grid.seq_lens), PASSES[-1], setting.device),
            protocol,
        )
        for shape in grid.models
    )


def first_steps(readings: Readings, setting: Setting) -> tuple[FirstStepCost, ...]:
    """Of the cases of `explained` those whose first step was profiled."""
    found = []
    for case, protocol in explained(setting):
        cold = readings.find((case, protocol))
        if cold is not None and cold.first_step is not None:
            steady = readings.find((case, _protocol(setting, max(WARMUPS))))
            found.append(FirstStepCost(cold=cold, steady=steady, profile=cold.first_step))
    return tuple(found)


def read(readings: Readings, setting: Setting) -> tuple[Reading, ...]:
    return tuple(
        Reading(
            case=case,
            warmup_steps=steps,
            measurement=readings.find((case, _protocol(setting, steps))),
            steady=readings.find((case, _protocol(setting, max(WARMUPS)))),
        )
        for case in _cases(setting)
        for steps in WARMUPS
    )
