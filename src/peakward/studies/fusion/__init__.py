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
            *conclusions.passes(timed),
            *conclusions.times(timed),
            *conclusions.shares(timed, of),
            *conclusions.equality(timed),
        ),
        notes=(
            "Passes are bytes moved over the bytes of the inputs. Bytes moved are counted, not "
            "measured: of separate calls what each operator that torch dispatched reads and writes, "
            "of compiled code what Inductor adds up for the kernels that it made. So what a cache "
            "serves counts as well: the online softmax moves each block several times between calls, "
            "of which memory sees one. Within one kernel it needs two passes, one for its statistics "
            "and one to write.",
            "Bandwidth is of the least bytes, every input read once and the result written once, and "
            "its share is of this device's measured copy bandwidth. So it is lost by bytes moved "
            "twice as by kernels that move them slowly.",
            "Every step makes its results anew, as a model does: on a CPU the system hands out the pages "
            "of large ones at each call, which is part of their time.",
            "The difference is the largest from fp64 on the same inputs, over the largest value.",
            *pieces.over_copy(timed, of),
        ),
    )
