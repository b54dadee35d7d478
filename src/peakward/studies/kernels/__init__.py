"""Study `kernels`: which kernels take a step's time, and how much of them are matmuls.

Every case is timed, then profiled: what is said of kernels comes from its trace, and the profiler's
own times are only held against the plain timer's.
"""

from peakward.studies.kernels import conclusions, plots, tables, top
from peakward.studies.kernels.grid import longest, plan, read
from peakward.studies.parts import Parts
from peakward.studies.readings import Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting
from peakward.tune.profiles import N_STEPS

TITLE = "Which kernels take a step's time, and how much of them are matmuls?"
__all__ = ["TITLE", "gather", "parts", "plan"]


def gather(lab: Recorder, setting: Setting) -> None:
    """The times of the whole grid, then the profiles: a profiler costs its process."""
    lab.measure_all(plan(setting))
    for planned in plan(setting):
        lab.profile(planned)


def parts(readings: Readings, setting: Setting) -> Parts:
    """Tables of kernels and of their shares, and what the numbers say."""
    work = "kernel" if setting.device == "cuda" else "operator"
    cells = read(readings, setting)
    largest = longest(cells)
    return Parts(
        tables=(
            tables.times(cells, work),
            tables.matmul_shares(cells, work),
            *top.by_time(largest, work),
            *top.by_instances(largest, work),
            *top.not_matmuls(largest, work),
            tables.categories(cells, work),
        ),
        plots=plots.plots(cells, work),
        conclusions=(
            *conclusions.matmuls(cells, work),
            *conclusions.spread(cells, work),
            *conclusions.after_matmuls(largest, work),
            *conclusions.profiling(cells),
        ),
        notes=(
            f"Each profile is of {N_STEPS} steps of a warm case. Shares are of the durations of "
            f"{work}s, copies and sets by the driver left out; matmuls are the {work}s of that "
            "category, without fused attention.",
            f"The {work}s one by one are of the longest sequence of each size and pass; the record "
            "has those of all.",
        ),
    )
