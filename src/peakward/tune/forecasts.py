"""Finds what this machine can do and what a case takes on it, before anything is measured.

Ceilings are measured here; floors and forecasts are computed from them: of a decoder from its shape, of a
user's module from its captured operators. The effects of levers are predicted and bounded likewise.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from peakward.hardware import devices
from peakward.levers.catalogue import lever, needless, pull, unseen
from peakward.levers.registry import BY_NAME, at_work
from peakward.prediction.floor import COMPUTE_TYPES, floor
from peakward.prediction.operators.module_optimizer import OVER_LISTS, with_optimizer
from peakward.prediction.planning.changes import foretold
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.module import module_forecast
from peakward.prediction.planning.site import Site, site
from peakward.records.calibration import Calibration, Rates
from peakward.records.case import AS_WRITTEN, LeverCase, ModelCase, ModuleCase, StepCase
from peakward.records.case_key import same_work
from peakward.records.errors import PeakwardError
from peakward.records.lever import Bound, Foretold, Lever
from peakward.records.measurement import Environment
from peakward.records.op_graph import ModuleCapture, OpGraph
from peakward.records.plan import Absent, Forecast
from peakward.records.prediction import Prediction
from peakward.records.profile import CaseProfile
from peakward.report.format import format_cell

if TYPE_CHECKING:
    from peakward.lab.measure.sweep import Sweep
    from peakward.store.database import Store


def calibrated(sweep: "Sweep", store: "Store", case: LeverCase) -> Calibration:
    """This machine's ceilings, measured now where the store has none."""
    known = store.calibration(sweep.environment.key)
    if known is None:
        known = sweep.workers.calibrate(case.device)
        store.add_calibration(known)
    return known


def launch_costs(sweep: "Sweep", case: LeverCase) -> Rates | None:
    """Times calls on this host now; None of a step that is not predicted.

    A host's speed changes by the minute: a stored calibration knows that of its own minute. On an H200's host
    calls took up to 1.95 times as long within minutes after it.
    """
    if case.device != "cuda" or isinstance(case, StepCase):
        return None
    return sweep.workers.rates("launches", case.device)


def floor_of(
    case: LeverCase, environment: Environment, calibration: Calibration | None
) -> Prediction | None:
    """The case's floor on this machine; None of a user's module, whose maths is not known."""
    if not isinstance(case, ModelCase):
        return None
    device = devices.match(environment.device_name, environment.device_memory_bytes)
    return floor(case, calibration=calibration, device=device)


Capture = Callable[[ModuleCase], ModuleCapture]
"""Raises PeakwardError where there is none."""


class Forecasts:
    """By the calibration where it is a full one (`peakward devices calibrate`), else by the datasheet.

    Args:
        launches: what calls cost this host now, where that was measured; the calibration's or the
            datasheet's cost is taken without.
        capture: the operators of a module's step; asked where a forecast is to be had alone.
    """

    def __init__(
        self,
        environment: Environment,
        calibration: Calibration | None,
        capture: Capture,
        launches: Rates | None = None,
    ) -> None:
        self._environment, self._capture = environment, capture
        self.calibration = calibration
        device = devices.match(environment.device_name, environment.device_memory_bytes)
        self.here: Site | None = None
        """None where the device is not catalogued."""
        if device is not None:
            known = site(device, calibration=calibration)
            self.here = known if launches is None else known.issued_by(launches)
        self._made: dict[LeverCase, Forecast | str] = {}
        self._captured: dict[ModuleCase, ModuleCapture | str] = {}

    def of(self, case: LeverCase) -> Forecast | None:
        """Time and memory of the case on this machine; None for the reason that `why_none` has."""
        found = self._forecast(case)
        return None if isinstance(found, str) else found

    def why_none(self, case: LeverCase) -> str | None:
        """Why the case has no forecast, or None where it has one."""
        found = self._forecast(case)
        return found if isinstance(found, str) else None

    def _forecast(self, case: LeverCase) -> Forecast | str:
        if case not in self._made:
            self._made[case] = self._new(case)
        return self._made[case]

    def _new(self, case: LeverCase) -> Forecast | str:
        if case.device != "cuda" or self._environment.device_type != "cuda":
            return "steps on a CPU are not predicted"
        if self.here is None:
            return f"{self._environment.device_name} is not in the catalogue of devices"
        if isinstance(case, StepCase):
            return "a step given as a function does not say what it computes"
        if not isinstance(case, ModuleCase):
            return forecast(case, self.here)
        if (reason := unseen(case)) is not None:
            return reason
        captured = self._capture_of(case)
        if isinstance(captured, str):
            return captured
        optimizer = case.configuration.optimizer
        try:
            told = module_forecast(with_optimizer(captured, optimizer), self.here)
        except PeakwardError as refusal:
            return str(refusal)
        return msgspec.structs.replace(told, case=case)

    def _capture_of(self, case: ModuleCase) -> ModuleCapture | str:
        """The capture with AdamW over lists, or why there is none. That of a module whose blocks are compiled
        has the eager step in it: one serves both, where a capture of 28 layers takes seconds of a search."""
        case = msgspec.structs.replace(
            case, configuration=case.configuration.with_settings({"optimizer": OVER_LISTS})
        )
        blocks = pull(COMPILED, case)
        if case.configuration.compile != "none" or unseen(blocks) is not None:
            return self._captured_once(case)
        found = self._captured_once(blocks)
        if isinstance(found, str) or found.compiled is None or found.compiled.told:
            return self._captured_once(case)
        return msgspec.structs.replace(found, compiled=None)

    def _captured_once(self, case: ModuleCase) -> ModuleCapture | str:
        if case not in self._captured:
            try:
                self._captured[case] = self._capture(case)
            except PeakwardError as refusal:
                self._captured[case] = str(refusal)
        return self._captured[case]

    def graph(self, case: LeverCase) -> OpGraph | None:
        """The operators of a module as its code calls them in the case's precision, on which torch's choice
        of a kernel depends; None of what is not captured for a forecast."""
        if not isinstance(case, ModuleCase) or case.device != "cuda" or self.here is None:
            return None
        written = _written(case)
        if unseen(written) is not None:
            return None
        captured = self._capture_of(written)
        return None if isinstance(captured, str) else captured.graph

    def needless(self, lever: Lever, base: LeverCase) -> str | None:
        """Why the module's operators have nothing that the lever could be set for on the base, or None."""
        candidate = pull(lever, base)
        if not isinstance(candidate, ModuleCase):
            return None
        graph = self.graph(candidate)
        if graph is not None:
            return needless(lever, candidate, graph)
        refuses = any(value in BY_NAME[name].refused_by_capture for name, value in lever.sets)
        # A module that cannot be captured at all says nothing of the lever.
        if refuses and self.graph(base) is not None:
            captured = self._capture_of(_written(candidate))
            return captured if isinstance(captured, str) else None
        return None


def _written(case: ModuleCase) -> ModuleCase:
    """The module as its code calls it, in the case's precision, as a capture sees that."""
    plain = msgspec.structs.replace(AS_WRITTEN, precision=case.configuration.precision)
    return captured_as(msgspec.structs.replace(case, configuration=plain))


def captured_as(case: ModuleCase) -> ModuleCase:
    """The case with the same casts that a capture sees: fp16-mixed casts where bf16-mixed does."""
    if case.configuration.precision != "fp16-mixed":
        return case
    return pull(BF16_MIXED, case)


BF16_MIXED = lever("bf16-mixed")
COMPILED = lever("compile")
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
