"""A lever, tried and judged."""

from typing import Literal

import msgspec

from peakward.records.case import ConfiguredCase
from peakward.records.lever import NumericsClass
from peakward.records.measurement import Interval, Status

TrialVerdict = Literal["kept", "rejected", "inconclusive"]


class Pair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Median step times of base and candidate, run next to each other in one process."""

    process: int
    base_s: float
    candidate_s: float


class NumericsError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far one quantity lies from the fp64 oracle, as ‖x − oracle‖ / ‖oracle‖."""

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


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`lever` applied to `base`, measured against it in pairs."""

    id: str
    lever: str
    base: ConfiguredCase
    candidate: ConfiguredCase
    environment_key: str
    stage: Literal["refused", "screened", "confirmed"]
    """`refused`: the lever cannot apply here, or its numerics forbid it; nothing was timed."""
    verdict: TrialVerdict
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
