"""Predicts the effects of levers on this machine, and bounds them."""

from collections.abc import Callable

from peakward.levers.registry import BY_NAME, at_work
from peakward.prediction.floor import COMPUTE_TYPES, floor
from peakward.prediction.planning.foretold import foretold
from peakward.records.case import LeverCase, ModelCase, same_work
from peakward.records.lever import Bound, Foretold
from peakward.records.plan import Absent
from peakward.records.profile import CaseProfile
from peakward.report.format import format_cell
from peakward.tune.forecasts import Forecasts

NS = 1e-9
RATE_DOUBT = 2.0
"""How much faster than its calibrated rate a matrix product may run: a run calibrates one size."""


class Expectations:
    """Forecasts and bounds of one machine's cases.

    Forecasts are those of the study; nothing here is measured.
    """

    def __init__(
        self,
        forecasts: Forecasts,
        profile_of: Callable[[LeverCase], CaseProfile | None],
    ) -> None:
        self._forecasts = forecasts
        self._device = None if forecasts.here is None else forecasts.here.device
        self._calibration, self._profile_of = forecasts.calibration, profile_of

    def foretold(self, base: LeverCase, candidate: LeverCase) -> Foretold:
        """The predicted effect, or why there is none."""
        before = self._forecasts.of(base)
        after = None if before is None else self._forecasts.of(candidate)
        if before is not None and after is not None:
            return foretold(before, after)
        reason = self._forecasts.why_none(base if before is None else candidate)
        assert reason is not None
        gaps = (Absent(figure=figure, reason=reason) for figure in ("time", "memory"))
        return Foretold(absent=tuple(gaps))

    def bound(self, base: LeverCase, candidate: LeverCase, base_s: float) -> Bound | None:
        """The least ratio of the candidate's step time to `base_s`: by the base's stored profile where
        the change leaves phases alone, by the candidate's arithmetic in any case; the stricter."""
        by_profile_s, by_floor_s = self._untouched_s(base, candidate), self._arithmetic_s(candidate)
        found: list[Bound] = []
        if by_profile_s is not None:
            found.append(Bound(least_time_ratio=by_profile_s / base_s, basis="profile"))
        if by_floor_s is not None:
            found.append(Bound(least_time_ratio=by_floor_s / base_s, basis="floor"))
        return max(found, key=lambda each: each.least_time_ratio, default=None)

    def by_rates(self, base: LeverCase, candidate: LeverCase) -> float | None:
        """The ratio of step times if the products were all, at the rates measured here; None where
        the precision stays, or no rate is known."""
        before, after = base.configuration.precision, candidate.configuration.precision
        if before == after or self._calibration is None:
            return None
        rates = [
            self._calibration.matmul_flops_per_s(COMPUTE_TYPES[each]) for each in (before, after)
        ]
        return rates[0] / rates[1] if rates[0] and rates[1] else None

    def hopeless(self, base: LeverCase, candidate: LeverCase, base_s: float) -> str | None:
        """Why the candidate cannot be faster than a base whose step takes `base_s`, or None.

        On two cores that compute bf16 without instructions for it, bf16-mixed took 29 times fp32's step:
        its screening cost 35 s of a budget of 100.
        """
        base_least_s, least_s = self._arithmetic_s(base), self._arithmetic_s(candidate)
        # A base that is faster than its own products says that the rates are wrong.
        known = base_least_s is not None and base_least_s <= base_s
        if not known or least_s is None or least_s < RATE_DOUBT * base_s:
            return None
        return (
            f"cannot gain: its matrix products alone take at least {format_cell(least_s, 's')} at the rates "
            "of this device, longer than a step without it"
        )

    def _untouched_s(self, base: LeverCase, candidate: LeverCase) -> float | None:
        """Returns the time of a step's kernels in the phases that the change leaves alone."""
        phases = _phases_left_alone(base, candidate)
        profile = self._profile_of(base) if phases else None
        if profile is None or profile.profile.is_of_host:
            return None
        total_ns = sum(
            group.total_ns for group in profile.profile.categories if group.phase in phases
        )
        return total_ns * NS / profile.n_steps

    def _arithmetic_s(self, case: LeverCase) -> float | None:
        """Its products at the datasheet's peak, where the device has one; else at the best rate that
        was measured. Traffic is left out: of a small case it may stay in a cache. None of a user's module,
        of whose products only it knows, nor of a lever that does not describe its work."""
        if not isinstance(case, ModelCase) or not _is_described(case):
            return None
        if self._device is None and self._calibration is None:
            return None
        calibration = None if self._device is not None else self._calibration
        times = [
            phase.compute_s
            for phase in floor(case, calibration=calibration, device=self._device).phases
        ]
        return None if None in times else sum(each for each in times if each is not None)


def _is_described(case: ModelCase) -> bool:
    """Whether the levers of other packages say what they compute."""
    return all(
        axis.is_field or axis.describes(value, case.device)
        for axis, value in at_work(case.configuration)
    )


def _phases_left_alone(base: LeverCase, candidate: LeverCase) -> tuple[str, ...]:
    if not same_work(base, candidate):
        return ()
    before, after = base.configuration.settings, candidate.configuration.settings
    changed = [field for field in before | after if before.get(field) != after.get(field)]
    left = [BY_NAME[name].leaves_alone if name in BY_NAME else () for name in changed]
    return tuple(phase for phase in left[0] if all(phase in each for each in left)) if left else ()
