"""The full calibration: the ceilings, then every subject of the rates. Imports no torch."""

from collections.abc import Callable, Sequence
from time import perf_counter

import msgspec

from peakward.lab.measure.isolated import Workers
from peakward.records.calibration import SUBJECTS, Calibration, Rates, Subject
from peakward.records.case import DeviceType

DOING = {
    "products": "matrix products by shape",
    "traffic": "bandwidth by size",
    "launches": "launch costs",
    "attention": "attention",
    "levels": "cache levels",
    "latency": "latency of loads",
    "link": "host link",
    "disk": "disk",
}
"""Each subject in words."""


def ignore(_doing: str) -> None:
    """Ignores the progress."""


def calibrate_in_full(
    workers: Workers,
    device_type: DeviceType,
    *,
    subjects: Sequence[Subject] = SUBJECTS,
    on_subject: Callable[[str], None] = ignore,
) -> Calibration:
    """Measures the ceilings and the rates, each subject by itself: one that fails costs no other.

    It took 29 s on two CPU cores, some 2 of them for latencies, and 45 s on an H200 before there were
    latencies (2026-11). `on_subject` is called with the next subject.

    Raises:
        PeakwardError: The device does not exist here, or even its ceilings could not be measured.
        KeyboardInterrupt: Ctrl-C.
    """
    started = perf_counter()
    on_subject("ceilings")
    ceilings = workers.calibrate(device_type)
    rates = Rates()
    for subject in subjects:
        on_subject(DOING[subject])
        rates += workers.rates(subject, device_type)
    return msgspec.structs.replace(ceilings, rates=rates, wall_s=perf_counter() - started)
