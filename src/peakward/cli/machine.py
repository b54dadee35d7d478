"""What of this machine decides whether a case can run at all."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast, get_args

import msgspec

from peakward.cli import values
from peakward.levers import catalogue as lever_catalogue
from peakward.records.case import Case, DeviceType, LeverCase, ModuleCase
from peakward.records.environment import Environment
from peakward.records.errors import PeakwardError
from peakward.records.lever import Lever
from peakward.records.protocol import Protocol

if TYPE_CHECKING:
    from peakward.lab.measure.sweep import Sweep


LEAST_CHECK_S = 120.0
"""For building a module and three of its steps, under a budget that is shorter than a large model's start."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The device that runs, and what it offers."""

    environment: Environment
    compute_capability: tuple[int, int] | None
    has_compiler: bool

    @property
    def device(self) -> DeviceType:
        return "cuda" if self.environment.device_type == "cuda" else "cpu"


def this_machine(requested: str | None) -> Machine:
    """This machine with the device asked for, or the one it would choose.

    Raises:
        PeakwardError: no such kind of device, or none here.
    """
    from peakward.lab.measure import probe

    if requested is not None:
        values.one_of(requested, get_args(DeviceType), "a value of --device")
    device: DeviceType = cast(DeviceType, requested) if requested else probe.default_device()
    return Machine(
        environment=probe.environment(device),
        compute_capability=probe.compute_capability() if device == "cuda" else None,
        has_compiler=probe.has_compiler(),
    )


def lever_obstacle(lever: Lever, case: LeverCase, machine: Machine) -> str | None:
    """Why the lever cannot apply to the case here, or why the case could then not run, or None."""
    unmet = lever_catalogue.obstacle(
        lever,
        case,
        compute_capability=machine.compute_capability,
        has_compiler=machine.has_compiler,
    )
    return unmet or case_obstacle(lever_catalogue.pull(lever, case), machine)


def after_precision(levers: Iterable[Lever], case: LeverCase) -> tuple[LeverCase, ...]:
    """The case under each precision that the levers bring: what another lever may need."""
    return tuple(
        lever_catalogue.pull(each, case) for each in levers if "precision" in dict(each.sets)
    )


def applicable(levers: tuple[Lever, ...], case: LeverCase, machine: Machine) -> tuple[Lever, ...]:
    """The levers, each asked for by name: all must be able to apply, to the case or after the others.

    Raises:
        PeakwardError: one that cannot, or that changes nothing; an explicit request is never skipped.
    """
    for lever in levers:
        bases = (case, *after_precision(levers, case))
        if all(lever_catalogue.pull(lever, base) == base for base in bases):
            raise PeakwardError(
                f"expected levers that change the start, got {lever.name}, which it has already: leave it "
                "out there or here"
            )
        reasons = [lever_obstacle(lever, base, machine) for base in bases]
        if None not in reasons:
            raise PeakwardError(f"expected levers that can apply here: {lever.name} {reasons[0]}")
    return levers


def case_obstacle(case: LeverCase, machine: Machine) -> str | None:
    """Why a setting of the case cannot apply here, or None."""
    return lever_catalogue.case_obstacle(
        case, compute_capability=machine.compute_capability, has_compiler=machine.has_compiler
    )


def check_modules(planned: Iterable[tuple[Case, Protocol]], sweep: "Sweep") -> None:
    """Build each user's module that is to be measured once and run it as it is, before anything is
    measured. What is wrong with one is the result of its cases.

    Raises:
        PeakwardError: one whose source cannot be found.
    """
    for case, protocol in planned:
        if isinstance(case, ModuleCase) and sweep.known(case, protocol) is None:
            sweep.check(case, protocol.timeout_s)


def expect_sound(case: LeverCase, sweep: "Sweep", budget_s: float) -> None:
    """The same for the one module of an investigation, which would have nothing to tell without it.

    Raises:
        PeakwardError: it cannot be found, built or run within the budget, with what is wrong.
    """
    if not isinstance(case, ModuleCase):
        return
    wrong = sweep.check(case, max(budget_s, LEAST_CHECK_S))
    if wrong is not None and wrong.status == "timeout":
        raise PeakwardError(
            f"expected three steps of {case.source} as it is, got {wrong.reason}: give a longer --budget, "
            "or mend what hangs"
        )
    if wrong is not None and wrong.status == "invalid":
        raise PeakwardError(wrong.reason)


def runnable(
    cases: tuple[LeverCase, ...], machine: Machine
) -> tuple[tuple[LeverCase, ...], tuple[str, ...]]:
    """The cases that can run here, and why the others cannot, each reason once.

    Raises:
        PeakwardError: none can: what was asked for explicitly does not fall back.
    """
    reasons = [case_obstacle(case, machine) for case in cases]
    kept = tuple(case for case, reason in zip(cases, reasons, strict=True) if reason is None)
    said = tuple(dict.fromkeys(reason for reason in reasons if reason is not None))
    if not kept:
        raise PeakwardError(f"expected settings that can apply here: {said[0]}")
    return kept, said
