"""Decides what can run at all on this machine."""

import os
from collections.abc import Iterable
from typing import cast, get_args

import msgspec

from peakward.levers import catalogue as lever_catalogue
from peakward.records import check
from peakward.records.case import DeviceType, LeverCase
from peakward.records.errors import PeakwardError
from peakward.records.lever import Lever
from peakward.records.measurement import Environment


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
        check.one_of(requested, get_args(DeviceType), "a value of --device")
    device: DeviceType = cast(DeviceType, requested) if requested else probe.default_device()
    return Machine(
        environment=probe.environment(device),
        compute_capability=probe.compute_capability() if device == "cuda" else None,
        has_compiler=probe.has_compiler(),
    )


def n_cores() -> int:
    """The cores that this process may use, whatever the number of torch's threads."""
    allowed = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    return len(allowed)


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
