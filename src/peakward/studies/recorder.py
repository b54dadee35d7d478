"""A sweep that remembers what passed through it, so that an interrupted study keeps it."""

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import msgspec

from peakward.records.calibration import Subject
from peakward.records.case import (
    DeviceType,
    LeverCase,
    ModelCase,
    OperatorCase,
    StepCase,
)
from peakward.records.measurement import Measurement
from peakward.records.memory import CaseMemory
from peakward.records.profile import CaseProfile
from peakward.studies.readings import Planned, Readings
from peakward.tune.memory_records import MemoryRecorder, NotRecorded
from peakward.tune.profiles import NotProfiled, Profiler

if TYPE_CHECKING:
    from peakward.lab.measure.sweep import Sweep
    from peakward.store.database import Store


class Recorder:
    """Runs planned cases in a lab; `readings` holds all measurements, profiles and recorded memory
    that came back."""

    def __init__(self, lab: "Sweep") -> None:
        self._lab = lab
        self.readings = Readings()
        self.not_profiled: list[NotProfiled] = []
        """The cases that were to be profiled and could not."""
        self.not_recorded: list[NotRecorded] = []
        """The cases whose memory was to be recorded and could not."""

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
        """Records what the first step of a measured case did, and stores it with the case's measurement,
        so that it is told once."""
        measurement = self.readings.find(planned)
        if (
            measurement is None
            or measurement.status != "ok"
            or measurement.first_step is not None
            or not isinstance(planned[0], ModelCase | OperatorCase)
        ):
            return
        first_step = self._lab.workers.first_step(planned[0])
        if first_step is None:
            return
        explained = msgspec.structs.replace(measurement, id=uuid.uuid4().hex, first_step=first_step)
        self._lab.store.add_measurement(explained)
        self.readings.add(explained)

    def calibrate(self, subjects: Iterable[Subject]) -> None:
        """The device in full, from the store where that tells of all the subjects, else measured and
        stored.

        Raises:
            PeakwardError: not even the device's ceilings could be measured.
        """
        from peakward.lab.measure.calibration.full import calibrate_in_full

        store, environment = cast("Store", self._lab.store), self._lab.environment
        found = store.calibration(environment.key)
        rates = None if found is None else found.rates
        if rates is None or not all(rates.tell_of(each) for each in subjects):
            device: DeviceType = "cuda" if environment.device_type == "cuda" else "cpu"
            found = calibrate_in_full(self._lab.workers, device)
            store.add_calibration(found)
        self.readings.calibration = found

    def ceilings(self) -> None:
        """The device's ceilings, from the store, else by the quick calibration, which is stored.

        Raises:
            PeakwardError: they could not be measured.
        """
        store, environment = cast("Store", self._lab.store), self._lab.environment
        found = store.calibration(environment.key)
        if found is None:
            device: DeviceType = "cuda" if environment.device_type == "cuda" else "cpu"
            found = self._lab.workers.calibrate(device)
            store.add_calibration(found)
        self.readings.calibration = found

    def profile(self, planned: Planned) -> CaseProfile | None:
        """Where the time of a measured case goes, from the store where it is there already.

        None where the case did not run, and where profiling it failed, which `not_profiled` tells.
        """
        case, protocol = planned
        measurement = self.readings.find(planned)
        if (
            measurement is None
            or measurement.status != "ok"
            or not isinstance(case, LeverCase | OperatorCase)
            or isinstance(case, StepCase)
        ):
            return None
        # A sweep asks its store for measurements alone; what the command line gives it is a Store.
        store, key = cast("Store", self._lab.store), self._lab.environment.key
        profiler = Profiler(self._lab.workers, store, key)
        found = profiler.profile(case, timeout_s=protocol.timeout_s)
        if isinstance(found, NotProfiled):
            self.not_profiled.append(found)
            return None
        self.readings.add_profile(found)
        return found

    def record_memory(self, planned: Planned) -> CaseMemory | None:
        """Returns what the memory of a measured case is held for, from the store where it is there already.

        None where the case did not run, and where recording it failed, which `not_recorded` tells.
        """
        case, protocol = planned
        measurement = self.readings.find(planned)
        if measurement is None or measurement.status != "ok" or not isinstance(case, ModelCase):
            return None
        store, key = cast("Store", self._lab.store), self._lab.environment.key
        recorder = MemoryRecorder(self._lab.workers, store, key)
        found = recorder.record(case, timeout_s=protocol.timeout_s)
        if isinstance(found, NotRecorded):
            self.not_recorded.append(found)
            return None
        self.readings.add_memory(found)
        return found
