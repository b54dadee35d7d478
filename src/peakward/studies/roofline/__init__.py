"""Study `roofline`: every operator of a training step on this device's roofline, measured beside predicted.

Where an operator stands is computed, from the closed form of the step's operators; how fast it ran is
read off a profile; the roof is that of the calibration.
"""

from peakward.records.calibration import Subject
from peakward.studies.parts import Parts
from peakward.studies.readings import Readings
from peakward.studies.recorder import Recorder
from peakward.studies.roofline import conclusions, moves, plots, tables
from peakward.studies.roofline.cells import Cell, read
from peakward.studies.roofline.grid import plan, refusals
from peakward.studies.roofline.over_roof import causes
from peakward.studies.setting import Setting
from peakward.tune.profiles import N_STEPS

TITLE = "How near to this device's roof is each operator, and what moves it there?"
MODELLED: tuple[Subject, ...] = ("products", "traffic", "launches", "attention")
"""Of a full calibration, what predictions are made from."""
__all__ = ["TITLE", "gather", "parts", "plan"]


def gather(lab: Recorder, setting: Setting) -> None:
    """The roof, and on a GPU the rates to predict from; the times; then the profiles."""
    if setting.device == "cuda":
        lab.calibrate(MODELLED)
    else:
        lab.ceilings()
    lab.measure_all(plan(setting))
    for planned in plan(setting):
        lab.profile(planned)


def parts(readings: Readings, setting: Setting) -> Parts:
    """Roofs, places and what moves them, and what the numbers say."""
    cells, of = read(readings, setting), readings.calibration
    return Parts(
        tables=(
            tables.roofs(cells),
            tables.steps(cells),
            *tables.operators(cells),
            tables.batches(cells),
            tables.fusion(cells),
        ),
        plots=plots.plots(cells),
        conclusions=(
            *conclusions.sides(cells, of),
            *conclusions.farthest(cells, of),
            *moves.precision(cells, of),
            *moves.batch(cells, of),
            *moves.fusion(cells),
            *conclusions.predictions(cells, of),
        ),
        notes=(*_conventions(cells, setting), *refusals(setting)),
    )


def _conventions(cells: tuple[Cell, ...], setting: Setting) -> list[str]:
    notes = [
        "Operations: of products 2·m·n·k, of fused attention half of it under the causal mask and no "
        "recomputation; of all else one for each element of the largest operand and step of its "
        "formula, in a fused kernel once for each operator that it names. Bytes: operands, each moved "
        "once. Both are computed; forward and backward pass together.",
        "The roof is this device's measured square matmul rate in the compute type and its copy "
        f"bandwidth; times are of kernels over {N_STEPS} profiled steps.",
    ]
    if setting.device == "cpu":
        notes.append(
            "On a CPU the times are the self times of operators on the host, calling them included; "
            "norms are written out there and count as elementwise. No time is predicted for a CPU."
        )
    notes += causes(cells, setting)
    return notes
