"""Study `vectorization`: one matrix product as loops in Python, by NumPy and by torch."""

from peakward.studies import pieces
from peakward.studies.parts import Parts
from peakward.studies.readings import Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting
from peakward.studies.vectorization import conclusions, tables
from peakward.studies.vectorization.grid import plan

TITLE = "What do loops in Python cost a matrix product?"
__all__ = ["TITLE", "gather", "parts", "plan"]


def gather(lab: Recorder, setting: Setting) -> None:
    """The rate that shares are of, then the products."""
    lab.ceilings()
    lab.measure_all(plan(setting))


def parts(readings: Readings, setting: Setting) -> Parts:
    """Times, rates and differences, and what the numbers say."""
    timed, of = pieces.read(plan(setting), readings), readings.calibration
    notes = [
        "FLOPs are 2·n³. Shares are of the fastest square product that the calibration measured on this "
        "device in the same type, which is not the datasheet's peak; Python's floats are fp64 and are "
        "held to the product in fp32.",
        "The difference is the largest from fp64 on the same inputs, over the largest value.",
    ]
    if setting.device == "cuda":
        notes.append(
            "Python and NumPy run on the CPU, whatever the device: theirs are the tables of a CPU, whose "
            "square product was not measured here, so that they have no share."
        )
    return Parts(
        tables=tables.by_device(timed, of),
        plots=(tables.plot(timed),),
        conclusions=(
            *conclusions.speedups(timed),
            *conclusions.growth(timed),
            *conclusions.shares(timed, of),
            *conclusions.equality(timed),
        ),
        notes=(*notes, *tables.over_square(timed, of)),
    )
