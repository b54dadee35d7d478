"""Study `hierarchy`: how fast and how far each level of memory is, and what a move between them takes.

Its measurement is the full calibration of the device; it runs no case, and its grid is the same in
every scope.
"""

from collections.abc import Iterator

import msgspec

from peakward.hardware import devices
from peakward.records.calibration import Calibration, Rates, Subject
from peakward.records.device import Device
from peakward.records.study import Conclusion
from peakward.studies.hierarchy import conclusions, tables
from peakward.studies.hierarchy.levels import read
from peakward.studies.hierarchy.moves import WEIGHTS, routes, tensors
from peakward.studies.parts import Parts
from peakward.studies.readings import Planned, Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting

TITLE = "How fast and how far is each level of memory?"
SUBJECTS: tuple[Subject, ...] = ("traffic", "levels", "latency", "link", "disk")
"""Of the calibration, what the study reads."""


def plan(_setting: Setting) -> tuple[Planned, ...]:
    """No case."""
    return ()


def gather(lab: Recorder, _setting: Setting) -> None:
    """The full calibration."""
    lab.calibrate(SUBJECTS)


def parts(readings: Readings, setting: Setting) -> Parts:
    """Levels, moves and curves, and what the numbers say."""
    of = readings.calibration
    if of is None or of.rates is None:
        return Parts()
    where = of.environment
    device = devices.match(where.device_name, where.device_memory_bytes)
    levels = read(of, device)
    ways = routes(levels, of.rates.traffic, setting.device)
    return Parts(
        tables=(
            tables.levels(levels),
            tables.moves(ways, tensors()),
            tables.working_sets(of.rates),
            tables.passes(of.rates),
        ),
        plots=(tables.bandwidth(of.rates), tables.latency(of.rates)),
        conclusions=(
            *_marked(conclusions.descent(levels, of), of.rates, "levels", "latency"),
            *_marked(conclusions.in_flight(levels, of), of.rates, "levels", "latency"),
            *_marked(conclusions.reach(of.rates, of), of.rates, "latency"),
            *_marked(conclusions.copies(of.rates, of), of.rates, "traffic"),
            *_marked(conclusions.ways(ways, WEIGHTS, of), of.rates, *SUBJECTS),
            *_marked(conclusions.against_datasheet(levels, of, device), of.rates, "levels", "link"),
        ),
        notes=(*_conventions(of, device), *_missing(of.rates)),
    )


def _marked(
    said: tuple[Conclusion, ...], rates: Rates, *subjects: Subject
) -> tuple[Conclusion, ...]:
    """Those that rest on subjects measured while something else ran say so."""
    doubtful = [each for each in subjects if each in (_subject(doubt) for doubt in rates.doubts)]
    if not doubtful:
        return said
    behind = f" (Measured beside other work: {', '.join(doubtful)}; see the notes.)"
    return tuple(msgspec.structs.replace(each, text=each.text + behind) for each in said)


def _subject(doubt: str) -> str:
    return doubt.partition(":")[0]


def _conventions(of: Calibration, device: Device | None) -> Iterator[str]:
    yield (
        f"Measured by the calibration of {of.started_at}; `peakward devices calibrate` measures it "
        "again."
    )
    yield (
        "What a cache holds is what the machine says of one; a virtual machine may share it with "
        "others. Beyond the reach of the TLB, walking the page table is part of a load."
    )
    yield (
        "A copy's rate counts bytes read and written, a read's the bytes read. Each belongs to the level "
        "that holds what is read and written, which the tables name."
    )
    yield (
        "Files are read block by block into one buffer of 8 MiB, which a cache may hold: to new memory "
        "it may take longer."
    )
    nearest = "registers"
    if of.environment.device_type == "cuda":
        nearest = "registers, shared memory and L1 (the nearest level here is L2)"
    yield f"Not measured: {nearest}, writes to a cache, and writes to a disk."
    if device is None:
        yield "This device is not in the catalogue: there is no datasheet to stand beside its figures."


def _missing(rates: Rates) -> Iterator[str]:
    """What of the study's subjects is absent or doubtful."""
    for each in rates.absent:
        if each.subject in SUBJECTS:
            figure = "" if each.figure is None else f", {each.figure}"
            yield f"Not measured: {each.subject}{figure}: {each.reason}."
    for doubt in rates.doubts:
        if _subject(doubt) in SUBJECTS:
            yield f"{doubt[:1].upper()}{doubt[1:]}: its figures may be too slow."
