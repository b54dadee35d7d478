"""Study `throughput`: what lower precision gains in speed, and what it lets train.

First tokens/s of each precision, forward and train step, by size and sequence length. Then what
trains under a memory limit, in each precision, and with checkpointing, with flash attention
(torch's SDPA) and with both.
"""

from peakward.studies.fits import asked_limits, limit_notes
from peakward.studies.parts import Parts
from peakward.studies.readings import Planned, Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting
from peakward.studies.throughput import (
    limits,
    memory_conclusions,
    speed,
    speed_conclusions,
    tables,
)

TITLE = "What does lower precision gain, and what does it let train?"


def plan(setting: Setting) -> tuple[Planned, ...]:
    """Size × sequence × precision × pass, and every way to train once without a limit."""
    return tuple(dict.fromkeys((*speed.plan(setting), *limits.free_plan(setting))))


def gather(lab: Recorder, setting: Setting) -> None:
    """The plan, then under each limit what the plan left open."""
    lab.measure_all(plan(setting))
    limits.gather(lab, setting)


def parts(readings: Readings, setting: Setting) -> Parts:
    """Rates, what trains under each limit, and what the numbers say."""
    cells, rows = speed.read(readings, setting), limits.read(readings, setting)
    bounds = limits.limits(setting)
    return Parts(
        tables=(tables.speeds(cells), tables.memory(rows, bounds), tables.categories(rows)),
        plots=(tables.speedup_plot(cells), tables.time_plot(cells)),
        conclusions=(
            *speed_conclusions.speed(cells),
            *memory_conclusions.boundaries(rows, bounds),
            *memory_conclusions.precisions(rows, bounds),
            *memory_conclusions.additions(rows, bounds),
        ),
        notes=(
            *speed.refusals(setting),
            *limit_notes(asked_limits(setting), setting),
            "A way to train fits a limit where two whole steps run under it. Where a measurement "
            "settles a limit (it fits a smaller one, or ran out under a larger one), it is not run.",
            "Flash attention stands for torch's scaled_dot_product_attention, which takes its flash "
            "kernel where precision and device allow it.",
        ),
    )
