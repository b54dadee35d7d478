"""Study `scaling`: which size for a training budget, for a life of serving, and with experts.

Arithmetic on published fits, catalogued shapes and datasheets: nothing is measured, and no torch is
needed. Its grid is the same in every scope.
"""

from peakward.models.scaling_fits import HOFFMANN_UNROUNDED, SCALING_FITS
from peakward.studies.parts import Parts
from peakward.studies.readings import Planned, Readings
from peakward.studies.recorder import Recorder
from peakward.studies.scaling import budgets, conclusions, experts, lives, plots, tables
from peakward.studies.setting import Setting

TITLE = "Which size for a budget, for a life of serving, and with experts?"


def plan(_setting: Setting) -> tuple[Planned, ...]:
    """No case."""
    return ()


def gather(_lab: Recorder, _setting: Setting) -> None:
    """Nothing is measured."""


def parts(_readings: Readings, _setting: Setting) -> Parts:
    """Budgets, lives and experts, and what the numbers say."""
    allocations, each_life = budgets.allocations(), lives.lives()
    overtrained, served = lives.overtrained(), experts.served()
    return Parts(
        tables=(
            tables.budgets(allocations),
            tables.overtrained(overtrained),
            tables.lives(each_life),
            tables.experts(served),
        ),
        plots=(plots.sizes(allocations), plots.overtraining(each_life), plots.traffic()),
        conclusions=(
            *conclusions.growth(allocations),
            conclusions.chinchilla(allocations),
            conclusions.disagreement(),
            *conclusions.smaller(overtrained),
            *conclusions.whole_lives(each_life),
            *conclusions.experts(served),
        ),
        notes=(
            *(f"{each.name}: {each.source}." for each in (*SCALING_FITS, HOFFMANN_UNROUNDED)),
            "Training takes 6 FLOPs a parameter and token, serving 2: attention's products are left "
            "out, as the fits leave them out. Of the mixture they are counted.",
            "The fits are of dense models: what loss a mixture of experts reaches, they do not say.",
            "Both fits rest on the same runs, of 70 million to 16 billion parameters on 5 to 500 "
            "billion tokens (Hoffmann et al. 2022): what lies beyond is extrapolated.",
        ),
    )
