"""Study `checkpointing`: what recomputing activations saves in memory, costs in time, lets fit.

Nothing recomputed, every √L-th block's input kept, every block's, and selectively (the results of
matmuls and attention kept): peak memory, step time and recomputed FLOPs of a train step; then the
largest batch and the longest sequence that fit a memory limit.
"""

from peakward.studies.checkpointing import conclusions, grid, largest, tables
from peakward.studies.fits import limit_notes
from peakward.studies.parts import Parts
from peakward.studies.readings import Planned, Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting

TITLE = "What does recomputation save, cost, and let fit?"


def plan(setting: Setting) -> tuple[Planned, ...]:
    """Size × sequence × mode; the searches' probes follow from what these measure."""
    return grid.plan(setting)


def gather(lab: Recorder, setting: Setting) -> None:
    """The grid, then the searches, which start from its peaks."""
    lab.measure_all(plan(setting))
    largest.gather(lab, setting)


def parts(readings: Readings, setting: Setting) -> Parts:
    """Costs, what fits, and what the numbers say."""
    cells, found = grid.cells(readings, setting), largest.found(readings, setting)
    return Parts(
        tables=(tables.costs(cells), tables.largest(found)),
        plots=(tables.plot(cells),),
        conclusions=(
            *conclusions.costs(cells),
            *conclusions.only_fits(cells),
            *conclusions.largest(found),
        ),
        notes=(
            f"Train steps in {grid.precision(setting)} with torch's scaled_dot_product_attention.",
            *limit_notes(largest.wanted_limits(setting), setting),
        ),
    )
