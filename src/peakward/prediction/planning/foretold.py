"""The predicted effect of a lever on a case: the candidate's forecast over the base's."""

from peakward.prediction.time.errors_seen import speedup
from peakward.records.lever import Foretold
from peakward.records.measurement import Interval
from peakward.records.memory import MemoryPrediction
from peakward.records.plan import Absent, Forecast

_FIGURES = {"step time": "time", "memory": "memory"}
"""The figures of a forecast that a ratio needs, and that ratio."""


def foretold(base: Forecast, candidate: Forecast) -> Foretold:
    """The ratios of step time and of peak memory; what either forecast lacks is absent with its reason.

    Compiled in a way that is not predicted itself, a case has the memory of the same case uncompiled,
    whose ratio to a base would say nothing of compilation: it is absent too.
    """
    known = [gap for gap in (*base.absent, *candidate.absent) if gap.figure in _FIGURES]
    absent = {_FIGURES[gap.figure]: gap for gap in known}
    gaps = [Absent(figure=figure, reason=gap.reason) for figure, gap in absent.items()]
    memory = _memory_ratio(base.memory, candidate.memory)
    if memory is None and "memory" not in absent:
        reason = "a case compiled in a way whose memory is not predicted"
        gaps.append(Absent(figure="memory", reason=reason))
    return Foretold(
        time_ratio=_time_ratio(base, candidate), memory_ratio=memory, absent=tuple(gaps)
    )


def _time_ratio(base: Forecast, candidate: Forecast) -> Interval | None:
    if base.time is None or candidate.time is None or not (base.step_s and candidate.step_s):
        return None
    faster = speedup(base.time, candidate.time, base.step_s.estimate / candidate.step_s.estimate)
    return Interval(
        estimate=1 / faster.estimate, low=1 / faster.high, high=1 / faster.low, level=faster.level
    )


def _memory_ratio(
    base: MemoryPrediction | None, candidate: MemoryPrediction | None
) -> float | None:
    if base is None or candidate is None or base.basis != "step" or candidate.basis != "step":
        return None
    return candidate.peak_bytes / base.peak_bytes
