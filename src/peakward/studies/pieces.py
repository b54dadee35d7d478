"""Small pieces of code, planned and read: what the studies of them share."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from peakward.records.calibration import Calibration
from peakward.records.case import MicroCase
from peakward.records.measurement import Interval, Measurement, PieceWork
from peakward.records.study import Conclusion, Evidence
from peakward.studies.parts import evidence, say
from peakward.studies.readings import (
    Planned,
    Readings,
    distinct,
    median_s,
    processes,
    ratio,
    time,
)
from peakward.studies.setting import Setting

MAX_STEPS = 2000
"""Ten times the usual: 200 steps of a piece of microseconds end before the clock has settled, and 20,000
would fill the store."""
SMALL_TIMED_S = 0.25
"""Warm-up and timing of 25 pieces of some milliseconds then end within half a minute."""


SHOWN = {"online": "online by torch calls"}
"""What the name of a piece, by which stored cases are found, does not say."""


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """A piece and what came of it."""

    case: MicroCase
    measurement: Measurement | None

    @property
    def name(self) -> str:
        """The piece, for a reader."""
        return SHOWN.get(self.case.piece, self.case.piece)

    @property
    def work(self) -> PieceWork | None:
        """None unless the case ended `ok`."""
        return None if self.measurement is None else self.measurement.piece

    @property
    def time(self) -> Interval | None:
        """The median with its interval; None unless the case ended `ok`."""
        return time(self.measurement)

    @property
    def median_s(self) -> float | None:
        """None unless the case ended `ok`."""
        return median_s(self.measurement)

    @property
    def passes(self) -> float | None:
        """Bytes of operands, each once for each call or kernel that has it, over those of the inputs; None
        where nothing counted them."""
        return None if self.work is None else ratio(self.work.moved_bytes, self.work.input_bytes)

    @property
    def flops_per_s(self) -> float | None:
        """Of the subject's formula."""
        return None if self.work is None else ratio(self.work.flops, self.median_s)

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes that it has to move at least, over its time: what a better piece would have more of."""
        return None if self.work is None else ratio(self.work.least_bytes, self.median_s)


def planned(setting: Setting, cases: Iterable[MicroCase]) -> Iterator[Planned]:
    """Each by one protocol, with as many steps as the timed seconds hold up to `MAX_STEPS`."""
    bounds: dict[str, int | float] = {"max_steps": MAX_STEPS}
    if setting.scope.name == "small" and setting.scope.max_timed_s is None:
        bounds["max_timed_s"] = SMALL_TIMED_S
    protocol = setting.protocol(**bounds)
    return ((case, protocol) for case in cases)


def read(plan: Iterable[Planned], readings: Readings) -> tuple[Timed, ...]:
    """The pieces of a plan in its order, run or not."""
    return tuple(
        Timed(case=case, measurement=readings.find((case, protocol)))
        for case, protocol in plan
        if isinstance(case, MicroCase)
    )


def groups(timed: Iterable[Timed]) -> tuple[tuple[Timed, ...], ...]:
    """Those that compute the same, together: one subject, one set of sizes, one precision."""
    found: dict[tuple[object, ...], list[Timed]] = {}
    for each in timed:
        case = each.case
        found.setdefault((case.subject, case.sizes, case.precision), []).append(each)
    return tuple(map(tuple, found.values()))


def named(group: Sequence[Timed], piece: str) -> Timed | None:
    """The piece of a group, if it has one of that name and that was timed."""
    return next((each for each in group if each.case.piece == piece and each.time), None)


def sizes(case: MicroCase) -> str:
    """Cell and words: "1024 × 4096"."""
    return " × ".join(map(str, case.sizes))


def place(case: MicroCase) -> str:
    """For a sentence: "softmax of 1024 × 4096 in fp32"."""
    return f"{case.subject} of {sizes(case)} in {case.precision}"


def compared(where: str, slow: Timed | None, fast: Timed | None) -> tuple[Conclusion, ...]:
    """How many times as long the one takes as the other, with the ends that their intervals allow; that
    none can be told where they overlap. Nothing where one was not timed."""
    if slow is None or fast is None or slow.time is None or fast.time is None:
        return ()
    names = {
        "where": where,
        "slow": slow.name,
        "fast": fast.name,
        "processes": processes(slow.measurement, fast.measurement),
    }
    if not distinct(slow.time, fast.time):
        text = "{where}: {slow} takes {factor} the time of {fast}, not told apart by intervals{processes}."
        return (say(text, **names, factor=_factor("time over time", slow, fast)),)
    return (
        say(
            "{where}: {slow} takes {factor} the time of {fast} ({low} to {high}{processes}).",
            **names,
            factor=_factor("time over time", slow, fast),
            low=_evidence("least", slow.time.low / fast.time.high, slow, fast),
            high=_evidence("most", slow.time.high / fast.time.low, slow, fast),
        ),
    )


def _factor(quantity: str, slow: Timed, fast: Timed) -> Evidence:
    assert slow.median_s and fast.median_s
    return _evidence(quantity, slow.median_s / fast.median_s, slow, fast)


def _evidence(quantity: str, value: float, *timed: Timed) -> Evidence:
    return evidence(quantity, value, "ratio", *(each.measurement for each in timed))


def copy_share(timed: Timed, of: Calibration | None) -> float | None:
    """Of the measured copy bandwidth; None on another device than the calibration's."""
    return None if of is None else ratio(timed.bytes_per_s, of.copy_bytes_per_s)


def passes_at_copy(timed: Timed, of: Calibration | None) -> float | None:
    """Passes over the inputs that the copy bandwidth would have made in the piece's time: at most so many
    went over memory, if none faster than a copy."""
    if of is None or timed.work is None or timed.median_s is None:
        return None
    return ratio(timed.median_s * of.copy_bytes_per_s, timed.work.input_bytes)


def over_copy(timed: Iterable[Timed], of: Calibration | None) -> tuple[str, ...]:
    """A note that names what came out above the copy bandwidth, and why that may be."""
    above = [each for each in timed if (copy_share(each, of) or 0.0) > 1]
    if not above or of is None:
        return ()
    names = ", ".join(dict.fromkeys(f"{each.case.subject} {sizes(each.case)}" for each in above))
    return (
        f"A share over 100% ({names}): the ceiling is that of one large copy. What a cache holds is "
        "read and written faster, and reading alone may be faster than copying.",
    )
