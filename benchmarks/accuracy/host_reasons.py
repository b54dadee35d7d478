"""What stored measurements tell of a step that is not what the host's costs predict."""

from collections.abc import Sequence
from statistics import median

import msgspec

from accuracy.records import Replayed
from peakward.prediction.time.errors_seen import stays_bound_by_device
from peakward.records.case import ModelCase
from peakward.report.format import format_cell

LEAST_CASES = 3
"""Of others in a session, before they say something of its host."""
LEAST_CHANGE = 0.05
"""From which a session's host counts as faster or slower than the calibrated one."""


def concerned(case: Replayed) -> bool:
    """Whether the step, or a phase of it, waits for the host, or would for a slower one."""
    phases = case.calibrated.phases
    return not stays_bound_by_device(phases, host_is_known=True) or any(
        each.host_s > each.device_s for each in phases
    )


def causes(case: Replayed, cases: Sequence[Replayed]) -> list[str]:
    """Each with its numbers; empty where nothing is known."""
    found = (_unsteady(case), _itself(case), _session(case, cases), _alike(case, cases))
    return [each for each in found if each]


def _unsteady(case: Replayed) -> str | None:
    return f"measured {case.verdict}: {case.doubts[0]}" if case.doubts else None


def _itself(case: Replayed) -> str | None:
    low, high = min(case.medians_s), max(case.medians_s)
    if high < low * (1 + LEAST_CHANGE):
        return None
    return f"it took {_range(low, high)} in {len(case.medians_s)} measurements"


def _session(case: Replayed, cases: Sequence[Replayed]) -> str | None:
    """The host of its session, by other steps that wait for it, where it errs the same way."""
    others = [
        each.measured_s / each.calibrated.step_s.estimate
        for each in cases
        if each.calibrated.bound == "host"
        and (each.files, each.boards) == (case.files, case.boards)
        and each.key != case.key
    ]
    if len(others) < LEAST_CASES:
        return None
    ratio = median(others)
    same_way = (ratio > 1) == (case.error("calibrated") < 0)
    if abs(ratio - 1) < LEAST_CHANGE or not same_way:
        return None
    return (
        f"other steps of that session that wait for the host took {ratio:.2f} of what is "
        f"predicted (median of {len(others)})"
    )


def _alike(case: Replayed, cases: Sequence[Replayed]) -> str | None:
    """The same calls, on tensors of other sizes, should cost the host the same."""
    times_s = [
        each.measured_s
        for each in cases
        if each.calibrated.bound == "host"
        and each.key != case.key
        and _calls(each.case) == _calls(case.case)
    ]
    if not times_s:
        return None
    low, high = min(times_s), max(times_s)
    return f"the same calls on other sizes, waiting for the host too, took {_range(low, high)}"


def _calls(case: ModelCase) -> ModelCase:
    """The case whatever its batch and length."""
    work = msgspec.structs.replace(case.workload, batch_size=1, seq_len=1)
    return msgspec.structs.replace(case, workload=work, memory_limit_bytes=None)


def _range(low_s: float, high_s: float) -> str:
    low, high = format_cell(low_s, "s"), format_cell(high_s, "s")
    return low if low == high else f"{low} to {high}"
