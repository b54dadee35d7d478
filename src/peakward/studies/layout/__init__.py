"""Study `layout`: what it costs that operands do not lie row after row, and which views copy them."""

from peakward.studies import pieces
from peakward.studies.layout import conclusions, tables
from peakward.studies.layout.grid import plan
from peakward.studies.parts import Parts
from peakward.studies.readings import Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting

TITLE = "What do strides cost, and which views copy?"
__all__ = ["TITLE", "gather", "parts", "plan"]


def gather(lab: Recorder, setting: Setting) -> None:
    """All pieces: nothing depends on another."""
    lab.measure_all(plan(setting))


def parts(readings: Readings, setting: Setting) -> Parts:
    """Times by layout, what the views did, and what the numbers say."""
    timed = pieces.read(plan(setting), readings)
    return Parts(
        tables=(*tables.timings(timed), tables.views(timed)),
        plots=tables.plots(timed),
        conclusions=(
            *conclusions.costs(timed),
            *conclusions.copies(timed),
            *conclusions.views(timed),
            *conclusions.packing(timed),
        ),
        notes=(
            "Products: N is stored row after row, T column after column; the left operand first. What "
            "is strided has a gap after each row or element, what is expanded is stored once. Pieces "
            "that say so copy their operands to contiguous ones in every step.",
            "Bytes moved are those of the operators that torch dispatched, copies of its own before a "
            "product among them, though not those inside an operator; gaps between elements do not "
            "count, though a line of the cache holds them.",
            "A view is told by its memory: it lies in its input's, and allocates none. Views are not "
            "timed.",
            "The difference is the largest from fp64 on the same inputs, over the largest value.",
        ),
    )
