"""Study `memory`: what a step's memory is held for, phase by phase, and how that grows.

Every case runs two steps for its peak as torch counts it, then two more with every allocation
recorded, which tells what the peak of each phase was made of, and on a GPU what its kernels were at.
"""

from collections.abc import Sequence

from peakward.studies.memory import conclusions, levers, plots, tables
from peakward.studies.memory.grid import Cell, kept_name, longest, named, plan, precisions, read
from peakward.studies.parts import Parts
from peakward.studies.readings import Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting

TITLE = "What is a step's memory held for, phase by phase, and how does it grow?"
__all__ = ["TITLE", "gather", "parts", "plan"]

_ON_CPU = (
    "On a CPU the recorded figures are of what torch's tensors ask for; the measured one is the growth "
    "of the resident memory. Predictions are for a GPU, and stand here without cuBLAS's workspaces and "
    "the rounding of its allocator; of how operators keep their inputs a CPU differs a little."
)


def gather(lab: Recorder, setting: Setting) -> None:
    """The peaks of the whole grid, then the recordings: what measures must not follow a profiler."""
    lab.measure_all(plan(setting))
    for planned in plan(setting):
        lab.record_memory(planned)


def parts(readings: Readings, setting: Setting) -> Parts:
    """Peaks by phase and category, what is largest, predictions, and what the numbers say."""
    cells = read(readings, setting)
    last = longest(cells)
    return Parts(
        tables=(
            tables.peaks(cells),
            tables.purposes(cells),
            tables.residual(cells),
            *tables.modules(last),
            *tables.largest(last),
            *tables.clocks(last),
            tables.predicted(cells),
            levers.table(last),
        ),
        plots=(*plots.timelines(last), plots.peaks(cells)),
        conclusions=(
            *conclusions.shares(last),
            *conclusions.growth(cells),
            *conclusions.residual(last),
            *conclusions.predicted(cells),
        ),
        notes=(
            f"Naive attention, AdamW foreach; precisions {', '.join(precisions(setting))}.",
            "Activations are what the forward pass makes and the backward pass lets go, logits among them; a "
            "forward pass alone has none. Weight casts are the copies of weights that autocast makes.",
            *_mixed_up(cells),
            *((_ON_CPU,) if setting.device == "cpu" else ()),
            *_not_joined(last),
        ),
    )


def _mixed_up(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Of a record from before casts of weights were told apart."""
    known = [cell.memory for cell in cells if cell.memory is not None]
    if all(kept_name(each) == "activations" for each in known):
        return ()
    return (
        "Not measured in this record: casts of weights by themselves. Under autocast they stand among the "
        "activations, in every table and plot here.",
    )


def _not_joined(cells: Sequence[Cell]) -> tuple[str, ...]:
    return tuple(
        f"{named(cell)}: its memory is not joined to its kernels: {cell.memory.not_joined}."
        for cell in cells
        if cell.memory is not None and cell.memory.not_joined is not None
    )
