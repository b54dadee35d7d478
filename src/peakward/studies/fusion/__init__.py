"""Study `fusion`: what separate calls cost softmax, RMSNorm and cross-entropy, and what fusing them gains."""

from peakward.studies import pieces
from peakward.studies.fusion import conclusions, tables
from peakward.studies.fusion.grid import absences, plan
from peakward.studies.parts import Parts
from peakward.studies.readings import Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting

TITLE = "What does fusing kernels that memory binds gain?"
__all__ = ["TITLE", "gather", "parts", "plan"]


def gather(lab: Recorder, setting: Setting) -> None:
    """The bandwidth that shares are of, then the pieces."""
    lab.ceilings()
    lab.measure_all(plan(setting))


def parts(readings: Readings, setting: Setting) -> Parts:
    """Passes, bytes and times, and what the numbers say."""
    timed, of = pieces.read(plan(setting), readings), readings.calibration
    return Parts(
        tables=(
            *tables.by_subject(timed, of),
            tables.not_run(absences(setting)),
        ),
        plots=tables.plots(timed),
        conclusions=(
            *conclusions.passes(timed, of),
            *conclusions.times(timed),
            *conclusions.shares(timed, of),
            *conclusions.equality(timed),
        ),
        notes=(
            "Passes are bytes over the bytes of the inputs, told in two ways. Operands' passes are counted: "
            "of separate calls each operand of each operator that torch dispatched once, of compiled code "
            "each operand of each kernel that Inductor made once. A kernel that reads an operand twice has "
            "it once there. Passes at the copy's bandwidth are inferred: the time of the piece, times this "
            "device's copy bandwidth. No more than these went over memory, unless reading alone is faster "
            "than copying; fewer did where a kernel is slower than memory or waits for its launch.",
            "Online by torch calls shows the algorithm, not its use: a loop over blocks of columns, whose "
            "every step is a call, so that each block moves several times. Online in one kernel reads rows "
            "twice, once for maximum and sum and once for the quotient, and writes them once: three passes, "
            "less where a cache still holds the row. Peakward's own softmax holds a row in registers "
            "where it fits, and takes wider ones that way.",
            *tables.launches(timed, of),
            "Bandwidth is of the least bytes, every input read once and the result written once, and "
            "its share is of this device's measured copy bandwidth. So it is lost by bytes moved "
            "twice as by kernels that move them slowly.",
            "Every step makes its results anew, as a model does: on a CPU the system hands out the pages "
            "of large ones at each call, which is part of their time.",
            "The difference is the largest from fp64 on the same inputs, over the largest value.",
            *pieces.over_copy(timed, of),
        ),
    )
