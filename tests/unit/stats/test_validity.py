"""Planted faults in series of step times, and the verdict and number that each must get."""

import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.lab.measure import crowd
from peakward.lab.measure.crowd import Reading
from peakward.lab.measure.nvml import GpuProcess
from peakward.lab.measure.probe import judge_busy
from peakward.lab.measure.timer import unsteady_reason
from peakward.records.measurement import Interval, Telemetry
from peakward.stats.validity import (
    MIN_STEPS,
    MIN_VALUES,
    QUIET,
    SLOWDOWNS,
    judge_times,
    remedies,
    two_modes,
)


def noise(seed: int, n: int, cv: float = 0.01) -> list[float]:
    draw = random.Random(seed)
    return [0.01 * draw.lognormvariate(0, cv) for _ in range(n)]


def telemetry(*reasons: str, mean_mhz: float = 1950, high_mhz: float = 1980) -> Telemetry:
    clock = Interval(estimate=mean_mhz, low=1000, high=high_mhz, level=1)
    return Telemetry(sm_clock_mhz=clock, throttle_reasons=reasons, n_samples=40)


@pytest.mark.parametrize("n", [MIN_STEPS, 10, 50, 200])
@pytest.mark.parametrize("device", [None, telemetry("gpu_idle", "applications_clocks_setting")])
def test_a_quiet_series_is_stable(n: int, device: Telemetry | None) -> None:
    for seed in range(20):
        judged = judge_times(noise(seed, n), device)
        assert (judged.verdict, judged.reasons) == ("stable", ())


def test_constants_are_stable() -> None:
    assert judge_times([0.5] * 30, None).verdict == "stable"


@pytest.mark.parametrize("n", [0, 1, 2, MIN_STEPS - 1])
def test_too_few_steps_are_not_stable(n: int) -> None:
    judged = judge_times([0.01] * n, None)
    assert (judged.verdict, judged.reasons) == ("unstable", (f"{n} timed steps < {MIN_STEPS}",))


def test_a_wide_spread_is_unstable() -> None:
    judged = judge_times(noise(1, 60, cv=0.12), None)
    assert judged.verdict == "unstable"
    (share,) = re.findall(r"middle half ([\d.]+)% > 5%", judged.reasons[0])
    assert 8 < float(share) < 16


@pytest.mark.parametrize(("drift", "way"), [(0.10, "rose"), (-0.10, "fell")])
def test_a_drift_is_unstable_though_its_spread_passes(drift: float, way: str) -> None:
    series = [value * (1 + drift * i / 60) for i, value in enumerate(noise(2, 60))]
    judged = judge_times(series, None)
    assert judged.verdict == "unstable"
    (reason,) = judged.reasons
    (share,) = re.findall(rf"step time {way} ([\d.]+)% > 2%", reason)
    assert float(share) == pytest.approx(6.7, abs=1)


def test_one_spike_of_many_steps_leaves_the_verdict_alone() -> None:
    series = noise(3, 100)
    series[40] *= 4
    assert judge_times(series, None).verdict == "stable"


def test_spikes_that_cost_a_long_run_are_unstable() -> None:
    series = noise(4, 100)
    for place in range(0, 100, 10):
        series[place] *= 4
    judged = judge_times(series, None)
    assert judged.verdict == "unstable"
    (reason,) = judged.reasons
    assert re.match(
        r"slow outliers, up to (3\.9|4\.0|4\.1) times the median, lift the mean", reason
    )
    assert re.search(r"(29|30|31)\.\d% > 5% above it", reason)


def test_two_modes_are_named_with_their_shares() -> None:
    draw = random.Random(5)
    series = [v * (1.1 if draw.random() < 0.22 else 1) for v in noise(5, 200, cv=0.005)]
    judged = judge_times(series, None)
    assert judged.verdict == "unstable"
    (reason,) = [reason for reason in judged.reasons if reason.startswith("two modes")]
    assert re.search(
        r"(7\d|80)% of the steps near (9\.9|10)[\d.]* ms, 2\d% near 1[01][\d.]* ms", reason
    )


@pytest.mark.parametrize("reason", SLOWDOWNS)
def test_a_slowdown_is_throttled_whatever_the_times(reason: str) -> None:
    judged = judge_times(noise(6, 50), telemetry(reason))
    assert judged.verdict == "throttled"
    assert judged.reasons == (f"the device reported {reason} in 40 samples",)


def test_a_power_cap_counts_only_where_the_clock_fell() -> None:
    held = telemetry("sw_power_cap", mean_mhz=1900)
    fell = telemetry("sw_power_cap", mean_mhz=1500)
    assert judge_times(noise(7, 50), held).verdict == "stable"
    judged = judge_times(noise(7, 50), fell)
    assert judged.verdict == "throttled"
    assert judged.reasons == (
        "under the power cap the clock fell 24% > 5%, from 1980 to 1500 MHz on average",
    )


def test_a_clock_that_falls_without_a_cap_is_not_throttled() -> None:
    assert judge_times(noise(7, 50), telemetry(mean_mhz=1500)).verdict == "stable"


def test_a_power_cap_on_a_device_without_a_clock_sensor_is_not_judged() -> None:
    blind = Telemetry(throttle_reasons=("sw_power_cap",), n_samples=3)
    assert judge_times(noise(7, 50), blind).verdict == "stable"


def test_throttling_comes_first_and_the_rest_is_told_too() -> None:
    judged = judge_times(noise(8, 60, cv=0.2), telemetry("hw_thermal_slowdown"))
    assert judged.verdict == "throttled"
    assert "hw_thermal_slowdown" in judged.reasons[0]
    assert "coefficient of variation" in judged.reasons[1]


@given(st.lists(st.floats(1e-6, 1e3), max_size=40))
def test_a_verdict_other_than_stable_has_reasons_with_numbers(series: list[float]) -> None:
    judged = judge_times(series, None)
    assert (judged.verdict == "stable") == (not judged.reasons)
    assert all(re.search(r"\d", reason) for reason in judged.reasons)


GIB = 2**30


def busy(processes=(), utilisation=(), used=0):
    return judge_busy(processes, utilisation, used, own_pids=(), own_bytes=0)


def times(*steps_s, telemetry=None):
    return judge_times(steps_s, telemetry).reasons


CAPPED = Telemetry(
    sm_clock_mhz=Interval(estimate=1700, low=1500, high=1980),
    throttle_reasons=("sw_power_cap", "hw_thermal_slowdown"),
    n_samples=9,
)
REASONS = (
    crowd.judge(Reading(0, 0, 0), Reading(1.0, 1.0, 0.2), 2),
    busy(processes=[GpuProcess(pid=1, used=GIB)]),
    busy(utilisation=[90]),
    busy(used=9 * GIB),
    unsteady_reason([9.0, 5.0, 3.0], [2.0, 1.0, 0.5]),
    *times(1.0, 1.0),
    *times(*[1.0] * 30, telemetry=CAPPED),
    *times(*[1.0, 1.4] * 20),
    *times(*[1.0] * 39, 50.0),
    *times(*[1 + i / 50 for i in range(30)]),
    *times(*[2 - i / 50 for i in range(30)]),
    "other work took 71% > 5% of the cores while timing",  # as records of before have it
)


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_has_a_remedy(reason):
    assert remedies([reason])


def test_the_reasons_are_of_every_kind():
    for part in (
        "middle half",
        "slow outliers",
        "rose",
        "fell",
        "two modes",
        "power cap",
        "timed steps",
    ):
        assert any(part in reason for reason in REASONS), part


def test_a_remedy_is_said_once():
    assert remedies(
        ["other programs used 71% of the CPU", "other programs used 9%", "unheard of"]
    ) == (QUIET,)


def test_two_planted_groups_are_found() -> None:
    draw = random.Random(1)
    values = [draw.gauss(10, 0.1) for _ in range(60)] + [draw.gauss(12, 0.1) for _ in range(40)]
    draw.shuffle(values)
    modes = two_modes(values)
    assert modes is not None
    assert (modes.lower, modes.upper) == pytest.approx((10, 12), abs=0.1)
    assert modes.upper_share == 0.4


def test_two_constants_are_two_groups() -> None:
    modes = two_modes([1.0] * 15 + [2.0] * 5)
    assert modes is not None
    assert (modes.lower, modes.upper, modes.upper_share) == (1.0, 2.0, 0.25)


@pytest.mark.parametrize("n", [20, 60, 200])
@pytest.mark.parametrize(
    "one",
    [
        lambda draw: draw.gauss(10, 1),
        lambda draw: draw.uniform(9, 11),
        lambda draw: draw.lognormvariate(0, 0.3),
        lambda draw: 1 + draw.expovariate(1),
    ],
    ids=["normal", "uniform", "lognormal", "exponential"],
)
def test_one_group_is_rarely_split(one: Callable[[random.Random], float], n: int) -> None:
    draw = random.Random(2)
    split = sum(two_modes([one(draw) for _ in range(n)]) is not None for _ in range(200))
    assert split <= 0.04 * 200


def test_a_few_outliers_are_not_a_group() -> None:
    assert two_modes([1.0 + 0.001 * i for i in range(50)] + [9.0] * 8) is None


def test_constants_are_one_group() -> None:
    assert two_modes([3.0] * 40) is None


def test_few_values_are_not_split() -> None:
    assert two_modes([1.0, 2.0] * (MIN_VALUES // 2 - 1)) is None
