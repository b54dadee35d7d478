"""Study `attention`: what each way to compute attention takes, and what it keeps for backward.

One head over lengths and head dims: forward, backward and memory held in between; then, under memory
limits, the length at which the naive way ends.
"""

from peakward.studies.attention import (
    conclusions,
    growth,
    growth_conclusions,
    limits,
    plots,
    tables,
)
from peakward.studies.attention.grid import plan, read
from peakward.studies.parts import Parts
from peakward.studies.readings import Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting

TITLE = "What does each attention take in time and memory, and how does it grow?"
__all__ = ["TITLE", "gather", "parts", "plan"]


def gather(lab: Recorder, setting: Setting) -> None:
    """The times of the whole grid, then the limits that they leave open."""
    lab.measure_all(plan(setting))
    limits.gather(lab, setting)


def parts(readings: Readings, setting: Setting) -> Parts:
    """Times and memory, how they grow, where naive ends, and what the numbers say."""
    cells = read(readings, setting)
    grown, ends = growth.read(cells), limits.read(readings, setting)
    return Parts(
        tables=(*tables.times(cells), tables.growth(grown), tables.limits(ends)),
        plots=plots.plots(cells),
        conclusions=(
            *conclusions.fastest(cells),
            *growth_conclusions.growth(grown),
            *conclusions.held(cells),
            *conclusions.limits(ends),
        ),
        notes=(
            "Causal attention of one head. Compiled is torch.compile of the naive one; sdpa is the "
            "backend that torch chooses, flex torch's FlexAttention with the causal block mask, flash "
            "and flash-hopper are Peakward's kernels.",
            "Backward is measured by itself, through one graph that is kept. Held for backward is what "
            "the forward pass leaves, its result included and its inputs not: by the allocator on a "
            "GPU, by what autograd saved on a CPU.",
            "The probability matrix is batch × length², as naive attention keeps it: the softmax's result "
            "in fp32, and in bf16 also the copy that is multiplied with the values. Naive holds a boolean "
            "mask beside it. What the compiled formula keeps is not known.",
            *limits.notes(setting),
        ),
    )
