"""Study `compile`: eager against torch.compile, and changing shapes against padding.

Attention alone, forward and the whole step by size, in each mode of torch.compile, and in tf32;
compile time and the number of steps that pays it back; graph breaks and recompilations with their
reasons. Then steps whose sequence length changes, for compile and for CUDA graphs of the step.
"""

from peakward.records.case import MicroCase, ModelCase, ModuleCase, OperatorCase, StepCase
from peakward.studies.compile import conclusions, grid, shapes, tables
from peakward.studies.parts import Parts
from peakward.studies.readings import Planned, Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting

TITLE = "What does torch.compile gain, and when does it pay?"


def plan(setting: Setting) -> tuple[Planned, ...]:
    """Size × subject × mode, then engine × padding; what autotunes comes last.

    Autotuning the fp32 train step of `small` was not done after six minutes on an H200: whoever
    ends the study then has the rest of it.
    """
    return tuple(sorted((*grid.plan(setting), *shapes.plan(setting)), key=_autotunes))


def _autotunes(planned: Planned) -> bool:
    case, _ = planned
    match case:
        case OperatorCase():
            return case.compile == "max-autotune"
        case ModelCase() | ModuleCase():
            return case.configuration.compile == "max-autotune"
        case MicroCase() | StepCase():
            return False


def gather(lab: Recorder, setting: Setting) -> None:
    """The plan: nothing in it depends on a measurement."""
    lab.measure_all(plan(setting))


def parts(readings: Readings, setting: Setting) -> Parts:
    """Times, paybacks, graphs and shapes, and what the numbers say."""
    cells, varied = grid.cells(readings, setting), shapes.cells(readings, setting)
    return Parts(
        tables=(tables.speeds(cells), tables.graphs(cells), tables.changing(varied)),
        plots=(tables.plot(cells),),
        conclusions=(
            *conclusions.speed(cells),
            *conclusions.payback(cells),
            *conclusions.graphs(cells),
            *conclusions.changing(varied),
        ),
        notes=grid.refusals(setting),
    )
