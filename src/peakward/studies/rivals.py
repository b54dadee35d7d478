"""Who is the fastest, and of whom: a superlative names every rival that was not timed, and why."""

from collections.abc import Iterable

import msgspec

from peakward.records.measurement import Interval, Measurement
from peakward.studies.readings import distinct, time

_ABSENT = {"oom": "out of memory", "timeout": "timed out", "invalid": "wrong result"}
"""The other statuses say themselves what happened."""
CANNOT_RUN = "cannot run here"


class Rival(msgspec.Struct, frozen=True, kw_only=True):
    """One way to do the work, and what came of it."""

    name: str
    measurement: Measurement | None
    can_run: bool = True

    @property
    def time(self) -> Interval | None:
        """The median with its interval; None unless it ended `ok`."""
        return time(self.measurement)

    @property
    def absence(self) -> str | None:
        """Why it has no time, in two or three words; None where it has one."""
        if self.time is not None:
            return None
        if not self.can_run:
            return CANNOT_RUN
        if self.measurement is None:
            return "not run"
        if self.measurement.interrupted:
            return "interrupted"
        return _ABSENT.get(self.measurement.status, self.measurement.status)


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """The rivals that were timed, fastest first, and those that were not."""

    timed: tuple[Rival, ...]
    untimed: tuple[Rival, ...]

    @property
    def title(self) -> str:
        """What the first may be called."""
        return "the fastest of those timed" if self.untimed else "the fastest"

    @property
    def absent(self) -> str:
        """The end of the sentence that calls it so: "; not timed: flex (interrupted), sdpa (not run)"."""
        return not_timed(self.untimed)

    @property
    def near(self) -> tuple[Rival, ...]:
        """Those whose interval overlaps that of the first."""
        first, *others = self.timed
        assert first.time is not None
        return tuple(each for each in others if each.time and not distinct(first.time, each.time))


def rank(rivals: Iterable[Rival]) -> Ranking:
    """The rivals of one piece of work in the order of their medians."""
    known = tuple(rivals)
    return Ranking(
        timed=tuple(sorted((each for each in known if each.time), key=_median_s)),
        untimed=tuple(each for each in known if each.time is None),
    )


def not_timed(untimed: Iterable[Rival]) -> str:
    """A clause that names each once with its reason; empty where all were timed."""
    by_reason: dict[str, list[str]] = {}
    for each in untimed:
        names = by_reason.setdefault(each.absence or "", [])
        if each.name not in names:
            names.append(each.name)
    said = ", ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
    return f"; not timed: {said}" if said else ""


def _median_s(rival: Rival) -> float:
    assert rival.time is not None
    return rival.time.estimate
