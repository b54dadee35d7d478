"""How far a measurement is from itself: the sessions, and cases measured more than once."""

from collections.abc import Sequence
from statistics import median

from accuracy.measured import Stored, median_s
from accuracy.records import Repeats, Replayed, Session
from peakward.records.case import ModelCase
from peakward.records.prediction import Waits


def sessions(stored: Sequence[Stored], cases: Sequence[Replayed]) -> list[Session]:
    """Each file's and board's times over the calibrated predictions, where any of it is predicted.

    The calibration was taken in a session of its own, on one board and one host.
    """
    predicted = {each.case: each.calibrated for each in cases}
    ratios: dict[tuple[str, str | None], dict[Waits, list[float]]] = {}
    for file, each in stored:
        on = predicted.get(each.case) if isinstance(each.case, ModelCase) else None
        if on is not None and each.status == "ok":
            key = (file, each.environment.device_uuid)
            of_bound = ratios.setdefault(key, {"host": [], "device": []})
            of_bound[on.bound].append(median_s(each) / on.step_s.estimate)
    return [
        Session(
            file=file,
            board=board,
            n_host=len(found["host"]),
            host_ratio=median(found["host"]) if found["host"] else None,
            n_device=len(found["device"]),
            device_ratio=median(found["device"]) if found["device"] else None,
        )
        for (file, board), found in ratios.items()
    ]


def repeats(cases: Sequence[Replayed]) -> list[Repeats]:
    """Of the cases with several measurements, by what the step waits for."""
    bounds: tuple[Waits, ...] = ("device", "host")
    return [
        Repeats(bound=bound, n=len(spreads), median=median(spreads), worst=max(spreads))
        for bound in bounds
        if (spreads := _spreads(cases, bound))
    ]


def _spreads(cases: Sequence[Replayed], bound: Waits) -> list[float]:
    return [
        max(each.medians_s) / min(each.medians_s) - 1
        for each in cases
        if each.calibrated.bound == bound and len(each.medians_s) > 1
    ]
