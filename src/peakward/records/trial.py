"""A lever, tried and judged."""

from typing import Literal

import msgspec

from peakward.records.case import LeverCase
from peakward.records.lever import NumericsClass
from peakward.records.measurement import EndedBy, Interval, Status
from peakward.records.plan import Absent

TrialVerdict = Literal["kept", "rejected", "inconclusive"]
Objective = Literal["latency", "throughput", "memory", "energy"]
"""What a search is after: the shortest step, the most tokens/s, the least peak memory, or the least
energy of a step."""


class Pair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Median step times of base and candidate, run next to each other in one process."""

    process: int
    base_s: float
    candidate_s: float
    base_j: float | None = None
    """Energy of a step, where the device counts it and ran long enough."""
    candidate_j: float | None = None


class NumericsError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far one quantity lies from the fp64 oracle, as ‖x − oracle‖ / ‖oracle‖. Of a live step the oracle
    is the step without the lever, and the base the same called again."""

    quantity: Literal["logits", "loss", "gradients", "parameters", "updates"]
    candidate_error: float
    base_error: float
    bound: float
    """What `candidate_error` must not exceed for the class to hold."""


class NumericsVerdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the candidate computes what its class promises."""

    declared: NumericsClass
    verdict: Literal["holds", "violated", "not computed"]
    reason: str | None = None
    errors: tuple[NumericsError, ...] = ()


class Foretold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a lever was predicted to do, before its candidate was measured against its base."""

    time_ratio: Interval | None = None
    """Candidate's step time over base's; nine in ten measured ratios lie in it. None: not computed, for
    the reason in `absent`."""
    memory_ratio: float | None = None
    """Candidate's peak allocated memory over base's; None likewise."""
    absent: tuple[Absent, ...] = ()
    """For the figures "time" and "memory"."""


class Bound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The least that a trial's time ratio can be: a smaller one is an error of ours."""

    least_time_ratio: float
    basis: Literal["profile", "floor"]
    """`profile`: the base's work that the lever cannot touch, over the base's step (Amdahl). `floor`:
    the candidate's products at the device's peak rate, over the base's step."""
    broken: bool = False
    """The whole interval of the time ratio lies below it."""


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`lever` applied to `base`, measured against it in pairs."""

    id: str
    lever: str
    base: LeverCase
    candidate: LeverCase
    environment_key: str
    stage: Literal["refused", "screened", "confirmed"]
    """`refused`: the lever cannot apply here, or its numerics forbid it; nothing was timed."""
    verdict: TrialVerdict
    """`kept`: a gain that was confirmed; whether its lever is in the best composition, `Study.steps` says."""
    reason: str
    status: Status = "ok"
    """`ok`, or that of the arm that failed."""
    pairs: tuple[Pair, ...] = ()
    time_ratio: Interval | None = None
    """Candidate's step time over base's (below 1 is faster): t-interval on the logarithm, with the
    process as the unit where there are several."""
    base_peak_bytes: int | None = None
    candidate_peak_bytes: int | None = None
    numerics: NumericsVerdict | None = None
    wall_s: float = 0.0
    foretold: Foretold | None = None
    """None in trials that were stored before it was kept, and where nothing was to be timed."""
    bound: Bound | None = None
    """None where none is known, and in screenings: these keep nothing."""
    judged_by: Literal["time", "memory", "energy"] = "time"
    """What the verdict is about."""
    doubts: tuple[str, ...] | None = None
    """Why the times may not be believed; `reason` repeats them. None in trials that were stored before they
    had a field."""
    energy_ratio: Interval | None = None
    """Candidate's energy of a step over base's, as `time_ratio`; None where it was not counted."""
    ended_by: EndedBy = "case"
    """Of an arm that failed. Where it is not the case, the trial says nothing about its lever."""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended an arm of it."""
        return self.ended_by == "user"

    @property
    def ratio(self) -> Interval | None:
        """Candidate over base of what it was judged by; below 1 is better."""
        if self.judged_by == "energy":
            return self.energy_ratio
        if self.judged_by == "time":
            return self.time_ratio
        if not self.base_peak_bytes or self.candidate_peak_bytes is None:
            return None
        ratio = self.candidate_peak_bytes / self.base_peak_bytes
        return Interval(estimate=ratio, low=ratio, high=ratio)
