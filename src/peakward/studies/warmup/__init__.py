"""Study `warmup`: what a benchmark without warm-up steps reports, against the steady time.

Every case runs in a fresh process and times ten steps, as a first benchmark script would.
"""

from peakward.studies.parts import Parts
from peakward.studies.readings import Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting
from peakward.studies.warmup import conclusions, tables
from peakward.studies.warmup.grid import N_TIMED, WARMUPS, explained, first_steps, plan, read

TITLE = "How far off is a benchmark without warm-up?"
__all__ = ["TITLE", "gather", "parts", "plan"]


def gather(lab: Recorder, setting: Setting) -> None:
    """The grid, then the first step of one case per size, profiled."""
    lab.measure_all(plan(setting))
    for planned in explained(setting):
        lab.explain_first_step(planned)


def parts(readings: Readings, setting: Setting) -> Parts:
    """Tables of the times and of how far they are off, and what the numbers say."""
    rows = read(readings, setting)
    costs = first_steps(readings, setting)
    return Parts(
        tables=(tables.times(rows), tables.offsets(rows), tables.first_steps(costs)),
        plots=(tables.plot(rows),),
        conclusions=(
            *(each for steps in WARMUPS for each in conclusions.judge(rows, steps)),
            *(said for each in costs for said in conclusions.explain(each)),
        ),
        notes=(
            f"Each case ran in a fresh process and timed {N_TIMED} steps. The steady time is the "
            f"median after {max(WARMUPS)} warm-up steps.",
            "The parts of a first step are taken under a profiler in another fresh process: of a GPU, host "
            "time while it had nothing to do, beyond that of a steady step. cuBLAS's heuristics choose a "
            "kernel at the first product of each shape; autotuning is Inductor's and Triton's timing of "
            "candidates, which an eager step without Triton has none of.",
        ),
    )
