"""The grid of `roofline` as far as it was run: each case with its time, its profile and its places."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from peakward.hardware import devices
from peakward.prediction.ceilings import Ceilings, ceilings
from peakward.prediction.floor import compute_type
from peakward.prediction.planning.site import site
from peakward.prediction.time.device_model import DeviceModel
from peakward.records.calibration import Calibration
from peakward.records.case import ModelCase, Precision
from peakward.records.device import Device
from peakward.records.measurement import Measurement
from peakward.records.op_graph import OpGraph
from peakward.records.profile import CaseProfile
from peakward.studies.readings import Readings
from peakward.studies.roofline.grid import Fusion, grid, planned, stated
from peakward.studies.roofline.places import Place, places
from peakward.studies.setting import Setting


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A case, its time, its profile, and what its operators' places are."""

    case: ModelCase
    fusion: Fusion
    measurement: Measurement | None
    profile: CaseProfile | None
    on: Ceilings | None
    """None without a calibration or datasheet."""
    places: tuple[Place, ...]
    """Empty without ceilings, and where the operators are not stated in closed form."""

    @property
    def precision(self) -> Precision:
        """The case's."""
        return self.case.configuration.precision

    @property
    def batch_size(self) -> int:
        """The case's."""
        return self.case.workload.batch_size

    @property
    def name(self) -> str:
        """What differs from cell to cell: "small, bf16-mixed, compiled, batch 4"."""
        return (
            f"{self.case.model.name}, {self.precision}, {self.fusion.name}, batch {self.batch_size}"
        )

    @property
    def ridge(self) -> float | None:
        """Operations a byte at which the roof bends; None where the matmul rate is unknown."""
        if self.on is None or self.on.matmul_flops_per_s is None:
            return None
        return self.on.matmul_flops_per_s / self.on.bytes_per_s

    def place(self, kind: str) -> Place | None:
        """The place of a kind; None where the step has none of it."""
        return next((each for each in self.places if each.kind == kind), None)


class _Device(NamedTuple):
    """What is known of the device before anything is run."""

    datasheet: Device | None
    calibration: Calibration | None
    model: DeviceModel | None
    """None on a CPU and on a GPU that is not catalogued."""

    def ceilings(self, case: ModelCase) -> Ceilings | None:
        if self.datasheet is None and self.calibration is None:
            return None
        return ceilings(compute_type(case), self.calibration, self.datasheet)


def read(readings: Readings, setting: Setting) -> tuple[Cell, ...]:
    """The grid as far as it was run."""
    on = _device(readings.calibration, setting)
    return tuple(_cell(case, fusion, readings, setting, on) for case, fusion in grid(setting))


def _device(calibration: Calibration | None, setting: Setting) -> _Device:
    where = setting.environment
    found = devices.match(where.device_name, where.device_memory_bytes)
    if setting.device == "cpu" or found is None:
        return _Device(found, calibration, None)
    return _Device(found, calibration, site(found, calibration=calibration).model)


def _cell(
    case: ModelCase, fusion: Fusion, readings: Readings, setting: Setting, device: _Device
) -> Cell:
    on, operators, profile = device.ceilings(case), stated(case, setting), readings.profile(case)
    return Cell(
        case=case,
        fusion=fusion,
        measurement=readings.find(planned(case, setting)),
        profile=profile,
        on=on,
        places=places(case, operators, on, profile, device.model)
        if on is not None and isinstance(operators, OpGraph)
        else (),
    )


def profiled(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Those with places and a profile."""
    return tuple(each for each in cells if each.places and each.profile is not None)


def largest(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Of each size, precision and fusion the largest batch that was profiled."""
    found: dict[tuple[str, Precision, str], Cell] = {}
    for cell in sorted(profiled(cells), key=lambda each: each.batch_size):
        found[cell.case.model.name, cell.precision, cell.fusion.name] = cell
    return tuple(cell for cell in cells if cell in found.values())
