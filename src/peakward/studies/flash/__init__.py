"""Study `flash`: our attention against every other, in FLOP/s and under the roof.

One causal head over lengths and head dims, forward, backward and both together.
"""

from peakward.studies.flash import conclusions, launches, over_roof, plots, tables
from peakward.studies.flash.grid import plan, read
from peakward.studies.parts import Parts
from peakward.studies.readings import Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting

TITLE = "How near to the roof is our attention, and each of its rivals?"
__all__ = ["TITLE", "gather", "parts", "plan"]


def gather(lab: Recorder, setting: Setting) -> None:
    """The roof, then the times of the whole grid."""
    lab.ceilings()
    lab.measure_all(plan(setting))


def parts(readings: Readings, setting: Setting) -> Parts:
    """Rates by arm, and what the numbers say."""
    cells = read(readings, setting)
    return Parts(
        tables=tables.rates(cells),
        plots=plots.plots(cells),
        conclusions=(
            *conclusions.best(cells, readings.calibration),
            *conclusions.against(cells),
            *conclusions.crossovers(cells),
            *launches.said(cells),
        ),
        notes=(
            "FLOPs are those that FlashAttention is rated by: causal forward 2·S²·d for the two "
            "products, half of them masked; backward 2.5 times that, for it makes the scores again and "
            "has five products. So they count a recomputation that Peakward's model FLOPs, elsewhere, "
            "do not, and naive attention is rated by them too: a rate compares times.",
            _roof(setting),
            *over_roof.causes(cells, readings.calibration),
            "Backward is measured by itself, through one graph that is kept. Compiled is torch.compile "
            "of the naive one; sdpa is the backend that torch chooses, flex torch's FlexAttention with "
            "the causal block mask, flash and flash-hopper are Peakward's kernels.",
            *_of_cpu(setting),
        ),
    )


def _roof(setting: Setting) -> str:
    text = (
        "The roof is this device's measured square matmul rate in the type that the products run as"
    )
    if setting.device == "cpu":
        return f"{text}."
    return (
        f"{text}. In fp32 that is fp32 itself for naive, sdpa-math and flex; a sixth of bf16's for flash, "
        "which makes a product of six in bf16; a third of tf32's for sdpa-efficient. For sdpa and "
        "compiled, of which no record says what kernel ran, the share is not computed."
    )


def _of_cpu(setting: Setting) -> tuple[str, ...]:
    if setting.device != "cpu":
        return (launches.NOTE,)
    return ("Our kernels do not run on a CPU: torch's sdpa stands in their place here.",)
