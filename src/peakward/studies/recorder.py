"""A sweep that remembers what passed through it, so that an interrupted study keeps it."""

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from peakward.records.case import StepCase
from peakward.records.measurement import Measurement
from peakward.studies.readings import Planned, Readings

if TYPE_CHECKING:
    from peakward.lab.measure.sweep import Sweep


class Recorder:
    """Runs planned cases in a lab; `readings` holds every measurement that came back."""

    def __init__(self, lab: "Sweep") -> None:
        self._lab = lab
        self.readings = Readings()

    def measure(self, planned: Planned) -> Measurement:
        """One case, from the store where it is there already."""
        measurement = self._lab.measure(*planned)
        self.readings.add(measurement)
        return measurement

    def measure_all(self, plan: Iterable[Planned]) -> None:
        """Each planned case, in order."""
        for planned in plan:
            self.measure(planned)

    def explain_first_step(self, planned: Planned) -> None:
        """What the first step of a measured case did, put with its measurement where it is told."""
        measurement = self.readings.find(planned)
        if measurement is None or measurement.status != "ok" or isinstance(planned[0], StepCase):
            return
        first_step = self._lab.workers.first_step(planned[0])
        explained = msgspec.structs.replace(measurement, id=uuid.uuid4().hex, first_step=first_step)
        self.readings.add(explained)
