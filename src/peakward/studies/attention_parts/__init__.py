"""Study `attention-parts`: what the softmax takes inside attention, against its FLOPs.

Naive attention alone, timed, then profiled in ranges around its parts.
"""

from peakward.studies.attention_parts import conclusions, tables
from peakward.studies.attention_parts.grid import plan, read
from peakward.studies.parts import Parts
from peakward.studies.readings import Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting

TITLE = "What does the softmax take inside attention?"
__all__ = ["TITLE", "gather", "parts", "plan"]


def gather(lab: Recorder, setting: Setting) -> None:
    """The times of the whole grid, then the profiles: a profiler costs its process."""
    lab.measure_all(plan(setting))
    for planned in plan(setting):
        lab.profile(planned)


def parts(readings: Readings, setting: Setting) -> Parts:
    """Tables of the parts and what the numbers say."""
    work = "kernels" if setting.device == "cuda" else "operators"
    cells = read(readings, setting)
    return Parts(
        tables=(tables.times(cells), tables.work(cells), tables.ratios(cells)),
        plots=(tables.plot(cells),),
        conclusions=(
            *conclusions.shares(cells),
            *conclusions.ratios(cells),
        ),
        notes=(
            f"Times of the parts are the durations of their {work} under a profiler, without what "
            "lies between them. The products are what of the scores' and values' ranges is a "
            "matmul; the rest of the scores' range scales and masks. Casts are the copies of scores "
            "and weights between the case's type and the softmax's fp32. Backward, a part is what "
            "computes its gradients.",
            "FLOPs of a head and batch, forward: 2·S²·d for each product, 5·S² for the softmax; "
            "backward twice that for a product, 4·S² for the softmax. Naive attention computes all "
            "of S², causal or not. Bytes are each input and output once, in the case's type; of the "
            "softmax in fp32, of the casts in both.",
        ),
    )
