"""What `peakward trace` tells of one trace, or of several as ranks of one job."""

from typing import ClassVar

import msgspec

from peakward.records.finding import Diagnosis
from peakward.records.profile import Job, Profile
from peakward.records.result import Result


class TraceReport(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The profile of each trace, what the rules say of each, and of several how they compare."""

    ROWS: ClassVar[tuple[str, ...]] = ("profiles",)

    profiles: tuple[Profile, ...]
    diagnoses: tuple[Diagnosis, ...]
    """One a profile. None of a part of a trace: the rest would look idle to the rules."""
    job: Job | None = None
    """None of a single trace."""
